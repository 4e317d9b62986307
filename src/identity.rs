//! stub
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SessionId([u8; 16]);
#[allow(missing_docs)]
impl SessionId {
    pub fn nil() -> Self {
        Self([0; 16])
    }
    pub fn is_nil(&self) -> bool {
        self.0 == [0; 16]
    }
    pub fn from_bytes(b: [u8; 16]) -> Self {
        Self(b)
    }
    pub fn to_bytes(&self) -> [u8; 16] {
        self.0
    }
}
impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
