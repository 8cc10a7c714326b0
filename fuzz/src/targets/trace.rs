//! Traces: what is read is written down and read again, and no trace takes memory beyond its size.

use graph::trace::{DISKS_MAX, Encoder, Reader, Record};

pub(super) fn run(data: &[u8]) {
    let (records, complete) = read(data);
    let disks = records.iter().filter(|record| matches!(record, Record::Disk(_))).count();
    assert!(disks <= DISKS_MAX && records.len() <= data.len());
    let (mut encoder, mut bytes) = Encoder::new();
    records.iter().for_each(|record| encoder.put(&mut bytes, record));
    assert_eq!(read(&bytes), (records, complete), "what was written is read again");
}

/// All records up to the end, or to what makes no sense.
fn read(bytes: &[u8]) -> (Vec<Record>, bool) {
    let mut reader = Reader::new(bytes);
    let mut records = Vec::new();
    while let Ok(Some(record)) = reader.read() {
        records.push(record);
    }
    (records, reader.is_complete())
}
