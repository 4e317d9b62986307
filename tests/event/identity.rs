//! Ids, coordinates, causes and times.

use stepwell::identity::*;

const TEXT: &str = "0a1b2c3d-0000-4000-8000-00000000abcd";

#[test]
fn an_id_is_written_in_lower_case_and_read_in_either() {
    let id: SessionId = TEXT.parse().unwrap();
    assert_eq!(id.to_string(), TEXT);
    assert_eq!(TEXT.to_uppercase().parse(), Ok(id));
    assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{TEXT}\""));
    assert_eq!(
        serde_json::from_str::<SessionId>(&format!("\"{}\"", TEXT.to_uppercase())).unwrap(),
        id
    );
    assert_eq!(SessionId::from_bytes(*id.as_bytes()), id);
}

#[test]
fn an_id_has_exactly_one_shape() {
    let simple = TEXT.replace('-', "");
    for (text, got) in [
        (String::new(), 0),
        (simple.clone(), 32),
        (format!("{{{TEXT}}}"), 38),
        (format!("urn:uuid:{TEXT}"), 45),
        (format!("{TEXT} "), 37),
    ] {
        assert_eq!(
            text.parse::<EventId>(),
            Err(ParseIdError::Length { got }),
            "{text}"
        );
    }
    let shifted = TEXT.replacen("d-0", "-d0", 1);
    assert_eq!(
        shifted.parse::<EventId>(),
        Err(ParseIdError::Character { offset: 7 })
    );
    assert_eq!(
        TEXT.replace('a', "g").parse::<EventId>(),
        Err(ParseIdError::Character { offset: 1 })
    );
    let wide = format!("é{}", &TEXT[2..]);
    assert_eq!(
        wide.parse::<EventId>(),
        Err(ParseIdError::Character { offset: 0 })
    );
    let padded = format!("{simple}----");
    assert!(padded.parse::<EventId>().is_err());
}

#[test]
fn fresh_ids_differ_and_are_not_nil() {
    let (first, second) = (TurnId::new(), TurnId::try_new().unwrap());
    assert!(first != second && !first.is_nil() && !second.is_nil());
    assert!(TurnId::nil().is_nil() && TurnId::default().is_nil());
    for id in [first, second] {
        assert_eq!(
            (id.as_bytes()[6] >> 4, id.as_bytes()[8] >> 6),
            (4, 2),
            "version and variant"
        );
    }
}

#[test]
fn absent_fields_are_left_out() {
    assert_eq!(
        serde_json::to_string(&Coordinates::default()).unwrap(),
        "{}"
    );
    assert_eq!(serde_json::to_string(&Cause::default()).unwrap(), "{}");
    let cause = Cause {
        coordinates: Coordinates::session(SessionId::from_bytes([1; 16]))
            .in_loop(LoopId::from_bytes([2; 16])),
        agency: Agency::User,
        ..Cause::default()
    };
    let text = serde_json::to_string(&cause).unwrap();
    assert_eq!(
        text,
        r#"{"session_id":"01010101-0101-0101-0101-010101010101","loop_id":"02020202-0202-0202-0202-020202020202","agency":1}"#
    );
    assert_eq!(serde_json::from_str::<Cause>(&text).unwrap(), cause);
    assert!(serde_json::from_str::<Cause>(r#"{"agency":2}"#).is_err());
    assert!(
        serde_json::from_str::<Cause>("{}")
            .unwrap()
            .agency
            .is_machine()
    );
}

#[test]
fn times_are_rfc_3339_with_nanoseconds() {
    for (text, secs, nanos, written) in [
        ("1970-01-01T00:00:00Z", 0, 0, "1970-01-01T00:00:00Z"),
        (
            "2026-11-30T17:30:00.000000005+05:30",
            1_796_040_000,
            5,
            "2026-11-30T12:00:00.000000005Z",
        ),
        (
            "2026-11-30T10:00:30.00003003Z",
            1_796_032_830,
            30_030,
            "2026-11-30T10:00:30.00003003Z",
        ),
        (
            "0000-01-01T00:00:00Z",
            -62_167_219_200,
            0,
            "0000-01-01T00:00:00Z",
        ),
        (
            "9999-12-31T23:59:59.999999999Z",
            253_402_300_799,
            999_999_999,
            "9999-12-31T23:59:59.999999999Z",
        ),
        (
            "1969-12-31T23:59:59.25Z",
            -1,
            250_000_000,
            "1969-12-31T23:59:59.25Z",
        ),
    ] {
        let time: Timestamp = text.parse().unwrap();
        assert_eq!((time.secs(), time.nanos()), (secs, nanos), "{text}");
        assert_eq!(time.to_string(), written);
        assert_eq!(written.parse(), Ok(time));
    }
}

#[test]
fn times_outside_four_digit_years_are_refused() {
    assert_eq!(
        Timestamp::new(253_402_300_800, 0),
        Err(TimestampError::OutOfRange)
    );
    assert_eq!(
        Timestamp::new(-62_167_219_201, 0),
        Err(TimestampError::OutOfRange)
    );
    assert_eq!(Timestamp::new(i64::MIN, 0), Err(TimestampError::OutOfRange));
    assert_eq!(
        Timestamp::new(0, 1_000_000_000),
        Err(TimestampError::Nanoseconds)
    );
    // In UTC these lie in the years -1 and 10000.
    for text in ["0000-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"] {
        assert_eq!(
            text.parse::<Timestamp>(),
            Err(TimestampError::OutOfRange),
            "{text}"
        );
    }
    for text in [
        "",
        "2026-11-30",
        "2026-11-30T10:00:00",
        "2026-13-30T10:00:00Z",
        "10000-01-01T00:00:00Z",
    ] {
        assert_eq!(
            text.parse::<Timestamp>(),
            Err(TimestampError::Syntax),
            "{text}"
        );
    }
    assert!(Timestamp::now().secs() > 1_700_000_000);
}
