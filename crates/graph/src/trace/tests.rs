use std::sync::Arc;

use proptest::prelude::*;
use throttle::Time;

use super::*;

fn disk(name: &str) -> Record {
    Record::Disk(TraceDisk { name: name.to_owned(), bytes: 1 << 30, cluster_bytes: 65536 })
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let (mut encoder, mut bytes) = Encoder::new();
    records.iter().for_each(|record| encoder.put(&mut bytes, record));
    bytes
}

fn decoded(bytes: &[u8]) -> Result<(Vec<Record>, bool), TraceError> {
    let mut reader = Reader::new(bytes);
    let mut records = Vec::new();
    loop {
        match reader.read() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => return Ok((records, reader.is_complete())),
            Err(ReadError::Trace(error)) => return Err(error),
            Err(ReadError::Io(error)) => panic!("{error}"),
        }
    }
}

fn requests() -> impl Strategy<Value = Vec<TraceRequest>> {
    let sectors = (0..1_u64 << 40, 0..1_u64 << 12).prop_map(|(at, len)| (at << 9, len << 9));
    let range = prop_oneof![sectors, (any::<u64>(), any::<u64>()), Just((0, 4096))];
    let one = (0..5000_u64, range, 0..3_u16, 0..Kind::ALL.len());
    prop::collection::vec(one, 0..200).prop_map(|many| {
        let mut at_us = 0;
        let request = |(passed, (offset, len), disk, kind): (u64, (u64, u64), u16, usize)| {
            at_us += passed;
            let kind = Kind::ALL[kind];
            let (offset, len) = if kind == Kind::Flush { (0, 0) } else { (offset, len) };
            TraceRequest { at_us, offset, len: len.min(u64::MAX - offset), disk, kind }
        };
        many.into_iter().map(request).collect()
    })
}

proptest! {
    #[test]
    fn what_was_written_is_read_again(requests in requests(), lost in any::<u64>()) {
        let mut records = vec![disk("/a"), disk(""), disk("/é")];
        let count = requests.len() as u64;
        records.extend(requests.into_iter().map(Record::Request));
        records.extend([Record::Lost(lost), Record::End { requests: count, lost }]);
        prop_assert_eq!(decoded(&encoded(&records)), Ok((records, true)));
    }

    #[test]
    fn a_trace_cut_off_anywhere_gives_all_records_before(requests in requests(), cut in any::<prop::sample::Index>()) {
        let mut records = vec![disk("/a"), disk("/b"), disk("/c")];
        records.extend(requests.into_iter().map(Record::Request));
        let bytes = encoded(&records);
        let (found, complete) = decoded(&bytes[..cut.index(bytes.len())]).unwrap();
        prop_assert!(!complete && records.starts_with(&found));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = encoded(&[disk("/a")]);
        bytes.extend(tail);
        _ = decoded(&bytes);
    }
}

#[test]
fn a_sequential_reader_takes_two_bytes_a_request() {
    let mut records = vec![disk("/a")];
    let head = encoded(&records).len();
    let request =
        |at: u64| TraceRequest { at_us: at * 20, offset: at << 16, len: 65536, disk: 0, kind: Kind::Read };
    records.extend((0..1000).map(|at| Record::Request(request(at))));
    let bytes = encoded(&records).len() - head;
    assert!(bytes < 2010, "{bytes}");
}

#[test]
fn what_is_no_trace_is_reported_from_one_that_is_damaged() {
    assert_eq!(decoded(b"QFI\xfb"), Err(TraceError::Magic));
    assert_eq!(decoded(b"cowtrace\x02"), Err(TraceError::Version { found: 2 }));
    assert_eq!(decoded(b"cowtrace"), Ok((Vec::new(), false)));
    let detail = "a request of a disk without a name";
    assert_eq!(decoded(b"cowtrace\x01\x00\x07\x00"), Err(TraceError::Corrupt { at: 9, detail }));
    let detail = "there is no such record";
    assert_eq!(decoded(b"cowtrace\x01\xff"), Err(TraceError::Corrupt { at: 9, detail }));
}

fn recorded(requests: usize) -> (Vec<Record>, Summary) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t");
    let recorder = Arc::new(Recorder::default());
    let recording = Recording::create(&path, Arc::clone(&recorder)).unwrap();
    assert!(Recording::create(&path, Arc::clone(&recorder)).is_err(), "a file is never overwritten");
    let TraceDisk { name, bytes, cluster_bytes } =
        TraceDisk { name: "/a".into(), bytes: 1 << 30, cluster_bytes: 65536 };
    let tap = recorder.join(TraceDisk { name, bytes, cluster_bytes }).unwrap();
    for at in 0..requests as u64 {
        tap.record(Kind::Read, at << 12, 4096, Time::from_nanos(5_000_000 + at * 1000));
    }
    let summary = recording.finish().unwrap();
    tap.record(Kind::Read, 0, 4096, Time::from_nanos(0));
    (decoded(&std::fs::read(&path).unwrap()).unwrap().0, summary)
}

#[test]
fn a_recording_holds_every_request_from_the_first_ones_time_on() {
    let (records, summary) = recorded(3);
    let request = |at: u64| {
        Record::Request(TraceRequest { at_us: at, offset: at << 12, len: 4096, disk: 0, kind: Kind::Read })
    };
    let end = Record::End { requests: 3, lost: 0 };
    assert_eq!(records, [disk("/a"), request(0), request(1), request(2), end]);
    assert_eq!(summary, Summary { requests: 3, lost: 0 });
}

#[test]
fn what_does_not_fit_is_lost_and_counted() {
    let (records, summary) = recorded(STRIPE_RECORDS + 7);
    assert_eq!(summary, Summary { requests: STRIPE_RECORDS as u64, lost: 7 });
    let end = Record::End { requests: STRIPE_RECORDS as u64, lost: 7 };
    assert_eq!(records[records.len() - 2..], [Record::Lost(7), end]);
}
