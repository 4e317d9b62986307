//! Any bytes as an event on the wire: no panic; what decodes encodes to a fixed point.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stepwell::event::{from_wire, to_wire};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(event) = from_wire(bytes) {
        if let Ok(wire) = to_wire(&event) {
            let again = from_wire(wire.as_bytes()).expect("what was encoded decodes");
            assert_eq!(again, event);
            assert_eq!(to_wire(&again).as_deref(), Ok(wire.as_str()));
        }
    }
});
