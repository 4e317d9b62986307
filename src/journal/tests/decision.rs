//! Every row of the decision table, from evidence written by hand.

use super::super::decision::{
    ActiveEvidence, Decision, Evidence, ManifestEvidence, Recovered, SegmentEvidence, decide,
};
use super::super::error::Damage;
use super::super::frame::{Header, LogId};
use super::super::manifest::{End, Manifest, SegmentEntry};
use super::super::names::SegmentName;
use super::super::scan::{Found, Scan};
use super::super::segment::{FRAMES, HeaderFound, Slot, StaticHeader};
use super::super::{FrameKind, Lsn, Seq};
use crate::identity::SessionId;

const LOG: LogId = LogId([1; 16]);
const CAPACITY: u64 = 16384;
const FRAME: u64 = 80;
const EPOCH: u64 = 3;

fn name(number: u64) -> SegmentName {
    SegmentName {
        number,
        generation: 0,
        epoch: 2,
    }
}

fn entry(number: u64, end: Option<End>) -> SegmentEntry {
    SegmentEntry::own(name(number), LOG, end)
}

/// The `index`-th smallest frame of a segment.
fn frame(index: u64, lsn: u64, watermark: u64, batch: (u16, u16)) -> Found {
    Found {
        offset: FRAMES + index * FRAME,
        header: Header {
            payload_crc: 0,
            payload_len: 0,
            session: SessionId::nil(),
            lsn: Lsn::new(lsn),
            seq: Seq::new(lsn),
            previous: Lsn::new(lsn - 1),
            watermark: Lsn::new(watermark),
            epoch: 2,
            batch_index: batch.0,
            batch_count: batch.1,
            kind: FrameKind::Record,
            flags: 0,
        },
    }
}

/// A segment 2 behind a finished segment 1 (Lsns 1 to 10), with these frames and nothing else.
fn evidence(frames: &[Found]) -> Evidence {
    let end = End {
        offset: FRAMES + 10 * FRAME,
        last: Lsn::new(10),
    };
    let entries = vec![entry(1, Some(end)), entry(2, None)];
    let position = frames.last().map_or(FRAMES, Found::end);
    let scan = Scan {
        frames: frames.to_vec(),
        position,
        expected: frames
            .last()
            .map_or(Lsn::new(11), |last| last.header.lsn.next()),
    };
    Evidence {
        manifest: ManifestEvidence::Good(Manifest {
            log: LOG,
            owner: SessionId::nil(),
            shared: false,
            number: 7,
            epoch: EPOCH,
            max_payload: 1024,
            segments: entries.clone(),
        }),
        newer_segment: None,
        segments: entries
            .iter()
            .map(|entry| SegmentEvidence {
                entry: *entry,
                present: true,
                end: entry.end,
                by_seal: false,
                used: entry.end.is_some() || !frames.is_empty(),
            })
            .collect(),
        active: Some(ActiveEvidence {
            index: 1,
            header: HeaderFound::Good(StaticHeader {
                log: LOG,
                name: name(2),
                capacity: CAPACITY,
            }),
            length: FRAMES + CAPACITY,
            base: Lsn::new(10),
            slots: Vec::new(),
            seal: None,
            first: scan.clone(),
            beyond: Vec::new(),
            second: scan,
            last_nonzero: position,
        }),
    }
}

fn active(evidence: &mut Evidence) -> &mut ActiveEvidence {
    evidence.active.as_mut().unwrap()
}

fn slot(watermark: u64, tail: u64, clean: bool) -> Slot {
    Slot {
        watermark: Lsn::new(watermark),
        tail,
        epoch: 2,
        clean,
    }
}

fn recovered(evidence: Evidence) -> Recovered {
    match decide(evidence) {
        Decision::Recovered(recovered) => *recovered,
        other => panic!("{other:?}"),
    }
}

fn damage(evidence: Evidence) -> Damage {
    match decide(evidence) {
        Decision::Damaged(damage) => damage,
        other => panic!("{other:?}"),
    }
}

fn singles(count: u64) -> Vec<Found> {
    (0..count)
        .map(|index| frame(index, 11 + index, 10 + index, (0, 1)))
        .collect()
}

#[test]
fn row_2_a_newer_manifest_or_segment_is_refused() {
    let mut newer = evidence(&[]);
    newer.manifest = ManifestEvidence::Newer(2);
    assert_eq!(decide(newer), Decision::NewerFormat(2));
    let mut newer = evidence(&singles(1));
    active(&mut newer).header = HeaderFound::Newer(9);
    assert_eq!(decide(newer), Decision::NewerFormat(9));
}

#[test]
fn row_2_a_segment_of_another_log_is_refused() {
    let mut foreign = evidence(&[]);
    active(&mut foreign).header = HeaderFound::Good(StaticHeader {
        log: LogId([2; 16]),
        name: name(2),
        capacity: CAPACITY,
    });
    assert_eq!(decide(foreign), Decision::ForeignLog(name(2)));
}

#[test]
fn row_3_nothing_anywhere_is_new_and_an_empty_list_is_half_created() {
    let mut new = evidence(&[]);
    new.manifest = ManifestEvidence::Absent { frames: false };
    assert_eq!(decide(new), Decision::New);
    let mut half = evidence(&[]);
    if let ManifestEvidence::Good(manifest) = &mut half.manifest {
        manifest.segments.clear();
    }
    half.segments.clear();
    half.active = None;
    assert!(matches!(decide(half), Decision::HalfCreated(_)));
}

#[test]
fn row_4_frames_without_a_manifest_and_newer_segments_are_damage() {
    let mut lost = evidence(&[]);
    lost.manifest = ManifestEvidence::Absent { frames: true };
    assert_eq!(damage(lost), Damage::ManifestLost);
    let mut bad = evidence(&[]);
    bad.manifest = ManifestEvidence::Bad;
    assert_eq!(damage(bad), Damage::ManifestLost);
    let mut outdated = evidence(&singles(2));
    outdated.newer_segment = Some(name(5));
    assert_eq!(
        damage(outdated),
        Damage::ManifestOutdated { segment: name(5) }
    );
}

#[test]
fn row_5_an_absent_segment_or_a_lost_successor_is_damage() {
    let mut absent = evidence(&singles(1));
    absent.segments[0].present = false;
    assert_eq!(damage(absent), Damage::SegmentMissing { segment: name(1) });
    let mut all_finished = evidence(&singles(1));
    all_finished.active = None;
    assert_eq!(damage(all_finished), Damage::SuccessorLost);
}

#[test]
fn row_7_a_bad_header_or_a_used_successor_is_damage() {
    let mut bad = evidence(&singles(1));
    active(&mut bad).header = HeaderFound::Bad;
    assert_eq!(damage(bad), Damage::Header { segment: name(2) });
    let mut other = evidence(&singles(1));
    active(&mut other).header = HeaderFound::Good(StaticHeader {
        log: LOG,
        name: name(3),
        capacity: CAPACITY,
    });
    assert_eq!(damage(other), Damage::Header { segment: name(2) });
    let mut used = evidence(&singles(1));
    let behind = entry(3, None);
    if let ManifestEvidence::Good(manifest) = &mut used.manifest {
        manifest.segments.push(behind);
    }
    used.segments.push(SegmentEvidence {
        entry: behind,
        present: true,
        end: None,
        by_seal: false,
        used: true,
    });
    assert_eq!(
        damage(used.clone()),
        Damage::SuccessorUsed { segment: name(3) }
    );
    used.segments[2].used = false;
    assert_eq!(recovered(used).last(), Lsn::new(11));
}

#[test]
fn row_8_a_short_segment_needs_a_clean_slot_that_explains_it() {
    let tail = FRAMES + 2 * FRAME;
    let mut short = evidence(&singles(2));
    active(&mut short).length = tail;
    assert_eq!(
        damage(short.clone()),
        Damage::Truncated {
            segment: name(2),
            length: tail,
            expected: FRAMES + CAPACITY,
        }
    );
    active(&mut short).slots = vec![slot(12, tail, false)];
    assert!(matches!(damage(short.clone()), Damage::Truncated { .. }));
    active(&mut short).slots = vec![slot(12, tail + FRAME, true)];
    assert!(matches!(damage(short.clone()), Damage::Truncated { .. }));
    active(&mut short).slots = vec![slot(12, tail, true)];
    let kept = recovered(short);
    assert_eq!((kept.last(), kept.watermark), (Lsn::new(12), Lsn::new(12)));
}

#[test]
fn row_9_a_slot_that_vouches_for_an_unreadable_record_is_damage() {
    let mut lost = evidence(&singles(2));
    active(&mut lost).slots = vec![slot(14, 0, false)];
    active(&mut lost).beyond = vec![frame(3, 14, 12, (0, 1))];
    active(&mut lost).last_nonzero = FRAMES + 4 * FRAME;
    assert_eq!(
        damage(lost),
        Damage::Acknowledged {
            segment: name(2),
            offset: FRAMES + 2 * FRAME,
            first: Lsn::new(13),
            last: Lsn::new(14),
            missing: vec![(Lsn::new(13), Lsn::new(13))],
        }
    );
}

#[test]
fn row_9_a_later_frame_vouches_for_the_group_before_it() {
    // Lsn 13 is unreadable, 14 is a later group: its watermark says that 13 was durable.
    let mut lost = evidence(&singles(2));
    active(&mut lost).beyond = vec![frame(3, 14, 13, (0, 1))];
    assert!(matches!(damage(lost.clone()), Damage::Acknowledged { .. }));
    // The same frame as a member of the group of 13 vouches for nothing: a legal tear.
    active(&mut lost).beyond = vec![frame(3, 14, 12, (1, 2))];
    active(&mut lost).last_nonzero = FRAMES + 4 * FRAME;
    let kept = recovered(lost);
    assert_eq!(kept.last(), Lsn::new(12));
    assert_eq!(kept.torn.unwrap().lsns, Some((Lsn::new(14), Lsn::new(14))));
}

#[test]
fn row_9_claims_outside_the_bounds_are_not_believed() {
    let check = |forged: Found| {
        let mut image = evidence(&singles(2));
        active(&mut image).beyond = vec![forged];
        assert_eq!(recovered(image).watermark, Lsn::new(11));
    };
    // An Lsn that the bytes before it cannot hold, an epoch above the manifest's, a watermark that
    // is not below its Lsn, an Lsn below the expected one.
    check(frame(3, 15, 14, (0, 1)));
    let mut later = frame(3, 14, 13, (0, 1));
    later.header.epoch = EPOCH + 1;
    check(later);
    check(frame(3, 14, 14, (0, 1)));
    check(frame(3, 12, 11, (0, 1)));
}

#[test]
fn row_9_an_incomplete_batch_at_or_below_the_watermark_is_damage() {
    let frames = [frame(0, 11, 10, (0, 1)), frame(1, 12, 11, (0, 3))];
    let mut cut = evidence(&frames);
    active(&mut cut).slots = vec![slot(12, 0, false)];
    assert_eq!(
        damage(cut),
        Damage::Acknowledged {
            segment: name(2),
            offset: FRAMES + FRAME,
            first: Lsn::new(12),
            last: Lsn::new(12),
            missing: vec![(Lsn::new(12), Lsn::new(12))],
        }
    );
}

#[test]
fn row_10_zeros_behind_what_is_kept_are_the_end() {
    let kept = recovered(evidence(&singles(3)));
    assert_eq!(kept.torn, None);
    // The last group proves the one before it: W is 12, and 13 is kept although not proven.
    assert_eq!((kept.watermark, kept.last()), (Lsn::new(12), Lsn::new(13)));
    let empty = recovered(evidence(&[]));
    assert!(empty.untouched);
    assert_eq!(
        (empty.watermark, empty.last()),
        (Lsn::new(10), Lsn::new(10))
    );
}

#[test]
fn row_11_keeps_all_valid_frames_and_reports_the_rest() {
    let mut torn = evidence(&singles(3));
    active(&mut torn).last_nonzero = FRAMES + 5 * FRAME;
    let kept = recovered(torn);
    assert_eq!(kept.last(), Lsn::new(13));
    let torn = kept.torn.unwrap();
    assert_eq!(
        (torn.offset, torn.end, torn.lsns, torn.incomplete_batch),
        (FRAMES + 3 * FRAME, FRAMES + 5 * FRAME, None, false)
    );
}

#[test]
fn row_11_cuts_an_incomplete_batch_above_the_watermark() {
    let frames = [
        frame(0, 11, 10, (0, 1)),
        frame(1, 12, 11, (0, 3)),
        frame(2, 13, 11, (1, 3)),
    ];
    let kept = recovered(evidence(&frames));
    assert_eq!(kept.last(), Lsn::new(11));
    let torn = kept.torn.unwrap();
    assert_eq!(torn.offset, FRAMES + FRAME);
    assert_eq!(torn.lsns, Some((Lsn::new(12), Lsn::new(13))));
    assert!(torn.incomplete_batch);
}

#[test]
fn keep_comes_from_the_second_pass_and_the_watermark_from_the_first() {
    // A writer that was overtaken finished one more group between the passes.
    let mut moving = evidence(&singles(3));
    let first = evidence(&singles(2));
    active(&mut moving).first = first.active.unwrap().first;
    active(&mut moving).slots = vec![slot(13, 0, false)];
    assert_eq!(recovered(moving).last(), Lsn::new(13));
}

/// The first row that applies decides: each row with the evidence of a later one beside it.
#[test]
fn the_order_of_the_rows() {
    let mut both = evidence(&singles(1));
    both.newer_segment = Some(name(9));
    both.segments[0].present = false;
    assert!(matches!(
        damage(both.clone()),
        Damage::ManifestOutdated { .. }
    ));
    both.newer_segment = None;
    active(&mut both).header = HeaderFound::Bad;
    assert!(matches!(
        damage(both.clone()),
        Damage::SegmentMissing { .. }
    ));
    both.segments[0].present = true;
    active(&mut both).length = FRAMES;
    assert!(matches!(damage(both.clone()), Damage::Header { .. }));
    active(&mut both).header = evidence(&[]).active.unwrap().header;
    active(&mut both).slots = vec![slot(30, 0, false)];
    assert!(matches!(damage(both.clone()), Damage::Truncated { .. }));
    active(&mut both).length = FRAMES + CAPACITY;
    active(&mut both).last_nonzero = FRAMES + CAPACITY;
    assert!(matches!(damage(both), Damage::Acknowledged { .. }));
}
