//! Any bytes as the payload of a record: no panic; what is accepted decodes to an event that, if it
//! passes validation, encodes again to bytes that decode to the same event.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stepwell::event::{Decoded, Limits, accept, decode_record, encode_record};
use stepwell::identity::SessionId;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default();
    let session = SessionId::from_bytes([7; 16]);
    let accepted = accept(bytes, &limits).is_ok();
    match decode_record(session, bytes, &limits) {
        Ok(Decoded::Event { event, key }) => {
            assert!(accepted, "decoded what is not acceptable");
            if let Ok(again) = encode_record(&event, key.as_ref(), &limits) {
                let decoded = decode_record(session, &again, &limits);
                assert_eq!(decoded, Ok(Decoded::Event { event, key }));
            }
        }
        Ok(_) | Err(_) => {}
    }
});
