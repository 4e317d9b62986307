//! Decoders take any bytes: no panic, no hang, and what they accept is a fixed point (P14).

use proptest::prelude::*;
use stepwell::event::*;
use stepwell::identity::SessionId;

use crate::events::{SESSION, sample};

/// A small generator, so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }

    /// Flips, replaces, removes, repeats or inserts something.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const TOKENS: &[&[u8]] = &[
            b"{", b"}", b"[", b"]", b",", b":", b"\"", b"null", b"\\ud83d", b"1e400", b"-1",
            b"\xff", b"\"v\":1",
        ];
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len() + 1);
            match self.below(5) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = u8::try_from(self.below(256)).unwrap(),
                2 => {
                    let end = (at + self.below(8)).min(bytes.len());
                    bytes.drain(at..end);
                }
                3 => {
                    let end = (at + self.below(40)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
                _ => {
                    bytes.splice(at..at, TOKENS[self.below(TOKENS.len())].iter().copied());
                }
            }
        }
    }
}

fn check_record(bytes: &[u8]) -> bool {
    let session: SessionId = SESSION.parse().unwrap();
    let limits = Limits::default();
    let decoded = decode_record(session, bytes, &limits);
    if let Ok(Decoded::Event { event, key }) = &decoded {
        assert_eq!(accept(bytes, &limits), Ok(()), "what is read was accepted");
        // The bytes themselves may differ in unknown keys or space, the event may not.
        let again = encode_record(event, key.as_ref(), &limits).unwrap();
        assert_eq!(decode_record(session, &again, &limits), decoded);
    }
    decoded.is_ok()
}

fn check_wire(bytes: &[u8]) -> bool {
    let decoded = from_wire(bytes);
    if let Ok(event) = &decoded {
        let text = to_wire(event).unwrap();
        assert_eq!(to_wire(&from_wire(text.as_bytes()).unwrap()).unwrap(), text);
    }
    decoded.is_ok()
}

/// Each run must accept some mutants and refuse others, or it tests nothing.
fn run(seeds: &[Vec<u8>], rounds: usize, check: fn(&[u8]) -> bool) {
    let mut random = Random(0x5eed_0123_4567_89ab);
    let mut accepted = 0;
    for round in 0..rounds {
        let mut bytes = seeds[round % seeds.len()].clone();
        random.mutate(&mut bytes);
        accepted += usize::from(check(&bytes));
    }
    assert!(
        accepted > rounds / 50 && accepted < rounds * 49 / 50,
        "{accepted} of {rounds} accepted"
    );
}

#[test]
fn mutated_records() {
    let enduring = Kind::ALL
        .iter()
        .copied()
        .filter(|kind| kind.class().is_enduring());
    let key = Key::new("k").unwrap();
    let seeds: Vec<Vec<u8>> = enduring
        .map(|kind| encode_record(&sample(kind), Some(&key), &Limits::default()).unwrap())
        .collect();
    run(&seeds, 4_000, check_record);
}

#[test]
fn mutated_wire_lines() {
    let kinds = Kind::ALL.iter().copied().filter(|kind| kind.is_on_wire());
    let seeds: Vec<Vec<u8>> = kinds
        .map(|kind| to_wire(&sample(kind)).unwrap().into_bytes())
        .collect();
    run(&seeds, 4_000, check_wire);
}

#[test]
fn headers_that_claim_huge_lengths_cost_nothing() {
    let limits = Limits::default();
    // Version, flags, header length 11; kind 6; no ids; then a "key" of 2^63 bytes where bytes end.
    let mut bytes = vec![1, 0, 0, 0, 6, 0, 0, 0];
    bytes.extend_from_slice(&[5; 16]);
    bytes.extend_from_slice(&[0, 1, 253, 255, 255, 255, 255, 255, 255, 255, 127]);
    bytes[2] = u8::try_from(bytes.len() - 4).unwrap();
    bytes.extend_from_slice(b"{}");
    assert_eq!(decode_header(&bytes, &limits), Err(DecodeError::Header));
}

#[test]
fn many_small_objects_and_many_keys_are_linear() {
    let started = std::time::Instant::now();
    let objects = format!(r#"{{"x":[{}{{}}]}}"#, r#"{"a":1,"b":2},"#.repeat(100_000));
    assert!(matches!(
        from_wire(objects.as_bytes()),
        Err(DecodeError::UnknownEventType { .. })
    ));
    let keys: Vec<String> = (0..9_999).map(|key| format!(r#""k{key}":0"#)).collect();
    let keys = format!("{{{}}}", keys.join(","));
    assert!(matches!(
        from_wire(keys.as_bytes()),
        Err(DecodeError::UnknownEventType { .. })
    ));
    assert!(started.elapsed().as_secs() < 10);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check_record(&bytes);
        check_wire(&bytes);
    }

    #[test]
    fn any_header_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let length = u8::try_from(bytes.len()).unwrap();
        let record = [&[1, 0, length, 0], bytes.as_slice(), b"{}"].concat();
        check_record(&record);
    }
}
