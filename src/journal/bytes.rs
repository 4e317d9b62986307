//! Little-endian numbers in and out of byte strings, without a way to read beyond their end.

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Takes the next `N` bytes and moves the cursor; `None` (cursor unchanged) if they are not there.
pub(crate) fn take_array<const N: usize>(bytes: &[u8], at: &mut usize) -> Option<[u8; N]> {
    let end = at.checked_add(N)?;
    let taken = bytes.get(*at..end)?.try_into().ok()?;
    *at = end;
    Some(taken)
}

pub(crate) fn take_u16(bytes: &[u8], at: &mut usize) -> Option<u16> {
    take_array(bytes, at).map(u16::from_le_bytes)
}

pub(crate) fn take_u32(bytes: &[u8], at: &mut usize) -> Option<u32> {
    take_array(bytes, at).map(u32::from_le_bytes)
}

pub(crate) fn take_u64(bytes: &[u8], at: &mut usize) -> Option<u64> {
    take_array(bytes, at).map(u64::from_le_bytes)
}

/// Writes a u32 over four bytes that are already there.
pub(crate) fn patch_u32(out: &mut [u8], at: usize, value: u32) {
    if let Some(field) = at.checked_add(4).and_then(|end| out.get_mut(at..end)) {
        field.copy_from_slice(&value.to_le_bytes());
    }
}
