use super::*;
use crate::stamp::SectorContent;

const LEN: u64 = 1024;

fn model() -> Model {
    Model::new(1, 1 << 20, DiscardedReads::ZeroesInUnits(1024))
}

fn write(model: &mut Model, started: Tick, ended: Tick) -> Vec<u8> {
    let (op, version) = model.start_write(0, LEN, started);
    model.done(op, ended, false);
    model.bytes(version, 0, LEN as usize)
}

#[test]
fn after_a_crash_the_flushed_value_and_every_later_one_is_legal_and_no_earlier_one() {
    let mut model = model();
    let first = write(&mut model, 1, 2);
    let second = write(&mut model, 3, 4);
    let flush = model.start_flush(5);
    let third = write(&mut model, 6, 7);
    model.flushed(flush, 8);
    let fourth = write(&mut model, 9, 10);
    let legal = |bytes: &[u8], at| model.check_crash(0, bytes, at).is_ok();
    assert!(!legal(&first, 20) && legal(&second, 20) && legal(&third, 20) && legal(&fourth, 20));
    assert!(legal(&first, 7), "the flush had not been acknowledged");
    assert!(!legal(&fourth, 8), "not issued yet");
    assert!(legal(&[0; 1024], 7) && !legal(&[0; 1024], 8));
}

#[test]
fn a_live_reader_sees_the_last_value_that_ended_or_a_concurrent_one() {
    let mut model = model();
    let first = write(&mut model, 1, 2);
    let (_running, version) = model.start_write(0, LEN, 3);
    let second = model.bytes(version, 0, 1024);
    assert!(model.check_read(0, &first, 4, 5).is_ok());
    assert!(model.check_read(0, &second, 4, 5).is_ok());
    assert!(model.check_read(0, &[0; 1024], 4, 5).is_err());
}

#[test]
fn a_failed_write_leaves_the_old_value_or_the_new_one_and_replaces_nothing() {
    let mut model = model();
    let old = write(&mut model, 1, 2);
    let (op, version) = model.start_write(0, LEN, 3);
    model.failed(op, 4);
    let new = model.bytes(version, 0, 1024);
    assert!(model.check_read(0, &old, 5, 6).is_ok() && model.check_read(0, &new, 5, 6).is_ok());
    let last = write(&mut model, 7, 8);
    assert!(model.check_read(0, &new, 9, 10).is_err() && model.check_read(0, &last, 9, 10).is_ok());
}

#[test]
fn a_dropped_write_may_land_until_everything_is_settled() {
    let mut model = model();
    let (op, version) = model.start_write(0, LEN, 1);
    model.abandoned(op);
    let dropped = model.bytes(version, 0, 1024);
    write(&mut model, 2, 3);
    assert!(model.check_read(0, &dropped, 4, 5).is_ok());
    model.settle(6);
    write(&mut model, 7, 8);
    assert!(model.check_read(0, &dropped, 9, 10).is_err());
}

#[test]
fn a_write_of_some_bytes_leaves_the_others() {
    let mut model = model();
    let mut expected = write(&mut model, 1, 2);
    let (op, version) = model.start_write(700, 100, 3);
    model.done(op, 4, false);
    expected[700..800].copy_from_slice(&model.bytes(version, 700, 100));
    assert!(model.check_read(0, &expected, 5, 6).is_ok());
    expected[699] ^= 1;
    assert_eq!(model.check_read(0, &expected, 5, 6).unwrap_err().offset, 512);
}

#[test]
fn the_message_names_the_write_whose_data_was_read() {
    let mut model = model();
    write(&mut model, 1, 2);
    let (op, version) = model.start_write(4096, 512, 3);
    model.done(op, 4, false);
    let foreign = model.bytes(version, 4096, 512);
    let mismatch = model.check_read(512, &foreign, 5, 6).unwrap_err();
    let stamp = Stamp { disk: 1, version, sector: 8 };
    assert_eq!(mismatch.found, SectorContent::Stamped(stamp));
}

#[test]
fn whole_units_of_a_discard_read_as_zeroes_and_its_edges_may_stay() {
    let mut model = model();
    let (op, version) = model.start_write(0, 4096, 1);
    model.done(op, 2, false);
    let old = model.bytes(version, 0, 4096);
    let op = model.start_discard(512, 2560, 3);
    model.done(op, 4, false);
    let mut read = old.clone();
    read[1024..3072].fill(0);
    assert!(model.check_read(0, &read, 5, 6).is_ok());
    read[512..1024].fill(0);
    assert!(model.check_read(0, &read, 5, 6).is_ok());
    assert!(model.check_read(0, &old, 5, 6).is_err());
}

#[test]
fn going_back_to_a_snapshot_brings_back_its_bytes_and_its_size() {
    let mut model = model();
    let first = write(&mut model, 1, 2);
    model.start_snapshot_create(7, 3);
    model.snapshot_created(7, 3);
    let second = write(&mut model, 4, 5);
    let op = model.start_snapshot_apply(7, 6).unwrap();
    model.done(op, 7, false);
    assert!(model.check_read(0, &first, 8, 9).is_ok() && model.check_read(0, &second, 8, 9).is_err());
    assert!(model.check_crash(0, &second, 9).is_ok(), "nothing was flushed");
}

#[test]
fn a_snapshot_is_there_from_its_acknowledgement_to_its_deletion_and_keeps_its_bytes() {
    let mut model = model();
    let first = write(&mut model, 1, 2);
    model.start_snapshot_create(7, 3);
    model.snapshot_created(7, 5);
    let second = write(&mut model, 6, 7);
    assert!(model.check_snapshot(7, 0, &first).is_ok() && model.check_snapshot(7, 0, &second).is_err());
    assert!(model.start_snapshot_delete(7, 8) && !model.start_snapshot_delete(7, 8));
    model.snapshot_deleted(7, 10);
    let legal = |found: &[u32], crash| model.check_snapshot_names(found, crash).is_ok();
    assert!(legal(&[], 2) && !legal(&[7], 2));
    assert!(legal(&[], 4) && legal(&[7], 4));
    assert!(!legal(&[], 6) && legal(&[7], 6));
    assert!(legal(&[], 9) && legal(&[7], 9));
    assert!(legal(&[], 11) && !legal(&[7], 11));
}

#[test]
fn what_a_shrink_cut_off_comes_back_as_zeroes() {
    let mut model = model();
    let old = write(&mut model, 1, 2);
    let op = model.start_resize(512, 3);
    model.done(op, 4, false);
    let op = model.start_resize(4096, 5);
    model.done(op, 6, false);
    let mut read = old.clone();
    read[512..].fill(0);
    assert!(model.check_read(0, &read, 7, 8).is_ok() && model.check_read(0, &old, 7, 8).is_err());
    assert!(model.size_is_legal(512, 8) && model.size_is_legal(1 << 20, 8) && model.size_is_legal(4096, 8));
}

#[test]
fn a_restarted_model_holds_to_what_was_found() {
    let mut model = model();
    let first = write(&mut model, 1, 2);
    let second = write(&mut model, 3, 4);
    let restarted = model.restarted(1 << 20, &[(0, first.clone())]);
    assert!(restarted.check_read(0, &first, 1, 2).is_ok() && restarted.check_read(0, &second, 1, 2).is_err());
}

#[test]
fn forgetting_history_keeps_what_a_reader_may_still_see() {
    let mut model = model();
    write(&mut model, 1, 2);
    let second = write(&mut model, 3, 4);
    let flush = model.start_flush(5);
    model.flushed(flush, 6);
    model.forget_history(7);
    assert!(model.check_read(0, &second, 8, 9).is_ok() && model.check_read(0, &[0; 1024], 8, 9).is_err());
}

#[test]
fn what_no_flush_covered_may_be_lost_when_closing_fails() {
    let mut model = Model::new(1, 4096, DiscardedReads::ZeroesOrOld);
    let (started, version) = model.start_write(0, 512, 1);
    let bytes = model.bytes(version, 0, 512);
    model.done(started, 2, false);
    assert!(model.check_read(0, &[0; 512], 3, 3).is_err());
    model.close_failed();
    assert!(model.check_read(0, &[0; 512], 4, 4).is_ok());
    assert!(model.check_read(0, &bytes, 4, 4).is_ok());
}
