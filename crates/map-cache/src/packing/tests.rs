//! Every form gives back every word, and each table gets the form that is meant for it.

use proptest::prelude::*;

use super::*;

const CLUSTER_BITS: u32 = 16;
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;

/// L2 entries: offsets in clusters, or the descriptor of a compressed cluster.
const L2: ColumnShape = ColumnShape { fields: [Field::new(CLUSTER_BITS, 56), Field::new(0, 54)] };
/// Bitmaps of subclusters.
const BITMAP: ColumnShape = ColumnShape { fields: [Field::new(0, 0), Field::new(0, 32)] };
const WHOLE: ColumnShape = ColumnShape { fields: [Field::new(0, 64), Field::new(63, 64)] };
const SHAPES: [ColumnShape; 3] = [L2, BITMAP, WHOLE];

/// Packs for every shape, compares every word, and gives the column for `L2`.
fn packed(words: &[u64]) -> Column {
    for shape in SHAPES {
        let column = Column::pack(words, shape);
        for (index, &word) in words.iter().enumerate() {
            assert_eq!(column.get(index), word, "entry {index} as {:?} with {shape:?}", column.form());
        }
        assert!(column.payload_words() <= words.len(), "{:?} is larger than the table", column.form());
    }
    Column::pack(words, L2)
}

fn data(cluster: u64) -> u64 {
    COPIED | (cluster << CLUSTER_BITS)
}

/// Numbers that look random and are the same in every run.
fn noise(index: u64) -> u64 {
    let mixed = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
}

#[test]
fn a_table_of_one_kind_is_one_run_and_takes_no_payload() {
    let tables: [Vec<u64>; 5] =
        [vec![0; 512], vec![1; 8192], (0..512).map(|at| data(7 + at)).collect(), vec![data(9)], Vec::new()];
    for words in tables {
        let column = packed(&words);
        assert_eq!((column.form(), column.payload_words()), (Form::Run, 0));
    }
}

#[test]
fn a_few_runs_are_a_list_of_twelve_bytes_each() {
    let mut words: Vec<u64> = (0..100).map(|at| data(1000 + at)).collect();
    words.extend([0; 200]);
    words.extend((0..212).map(|at| data(5000 + at)));
    let column = packed(&words);
    assert_eq!((column.form(), column.payload_words()), (Form::Runs, 3 + 2));
}

#[test]
fn clusters_in_random_order_take_the_bits_of_their_range() {
    let words: Vec<u64> = (0..512).map(|at| data(noise(at) % 655_360)).collect();
    let column = packed(&words);
    assert_eq!((column.form(), column.payload_words()), (Form::Frame, 1 + 512 * 20 / 64));
}

#[test]
fn what_is_not_allocated_does_not_widen_the_frame() {
    let far = 1 << 35;
    let words: Vec<u64> = (0..512)
        .map(|at| if noise(at).is_multiple_of(3) { 0 } else { data(far + noise(at) % 1024) })
        .collect();
    let column = packed(&words);
    assert_eq!((column.form(), column.payload_words()), (Form::Frame, 2 + 512 * 11 / 64));
}

#[test]
fn shared_clusters_have_a_frame_of_their_own() {
    let words: Vec<u64> = (0..512)
        .map(|at| match noise(at) % 2 {
            0 => data(1 + noise(at) % 256),
            _ => ((1 << 30) + noise(at) % 256) << CLUSTER_BITS,
        })
        .collect();
    let column = packed(&words);
    assert_eq!((column.form(), column.payload_words()), (Form::Frame, 2 + 512 * 9 / 64));
}

#[test]
fn descriptors_of_compressed_clusters_take_less_than_a_word_each() {
    let mut at = 1 << 20;
    let descriptor = |index| {
        let sectors = 40 + noise(index) % 60;
        at += sectors * 512 + noise(index) % 512;
        COMPRESSED | (sectors << 54) | at
    };
    let words: Vec<u64> = (0..512).map(descriptor).collect();
    let column = packed(&words);
    assert_eq!(column.form(), Form::Frame);
    assert!(column.payload_words() < 512 / 2 + 60, "{} words", column.payload_words());
}

#[test]
fn bitmaps_that_are_all_or_nothing_take_a_bit_each() {
    let words: Vec<u64> =
        (0..512).map(|at| if noise(at).is_multiple_of(2) { 0 } else { 0xffff_ffff }).collect();
    packed(&words);
    let column = Column::pack(&words, BITMAP);
    assert_eq!((column.form(), column.payload_words()), (Form::Frame, 2 + 512 / 64));
}

#[test]
fn what_cannot_be_packed_stays_as_it_is() {
    let words: Vec<u64> = (0..512).map(|at| noise(at) ^ (noise(at * 7) << 20)).collect();
    let column = packed(&words);
    assert_eq!((column.form(), column.payload_words()), (Form::Explicit, 512));
}

#[test]
fn the_number_of_groups_may_reach_its_limit_and_pass_it() {
    for groups in [1, 2, 3, 4, 5, 127, 128, 129, 255, 256, 257, 300] {
        let words: Vec<u64> = (0..4096).map(|at| ((noise(at) % groups) << 56) | (noise(at) % 7)).collect();
        let low: Vec<u64> = (0..4096).map(|at| (noise(at) % groups) | ((noise(at) % 9) << 20)).collect();
        packed(&words);
        packed(&low);
    }
}

#[test]
fn every_width_of_a_frame_gives_its_words_back() {
    for bits in 0..=64 {
        let mask = bits::mask(bits);
        let words: Vec<u64> = (0..130).map(|at| (noise(at) ^ (noise(at + 1) << 40)) & mask).collect();
        packed(&words);
        let shifted: Vec<u64> = words.iter().map(|word| COPIED | (word << CLUSTER_BITS)).collect();
        packed(&shifted);
        let extremes: Vec<u64> = [0, mask, 1, mask - mask / 2].repeat(33);
        packed(&extremes);
    }
}

/// Pieces of a table as tables have them.
fn piece() -> impl Strategy<Value = Vec<u64>> {
    let cluster = prop_oneof![0..100u64, 0..1u64 << 20, 0..1u64 << 40];
    prop_oneof![
        (0..200usize, prop_oneof![Just(0), Just(1), any::<u64>()]).prop_map(|(len, word)| vec![word; len]),
        (0..200u64, cluster.clone()).prop_map(|(len, from)| (0..len).map(|at| data(from + at)).collect()),
        (0..200u64, cluster).prop_map(|(len, from)| (0..len).map(|at| (from + at) << CLUSTER_BITS).collect()),
        (0..200u64, any::<u64>(), 1..1u64 << 30)
            .prop_map(|(len, seed, range)| (0..len).map(|at| data(noise(at ^ seed) % range)).collect()),
        proptest::collection::vec(any::<u64>(), 0..40),
        proptest::collection::vec((0..1u64 << 62).prop_map(|low| COMPRESSED | low), 0..40),
        (any::<u64>(), 0..100u64)
            .prop_map(|(base, len)| (0..len).map(|at| base.wrapping_add(at << CLUSTER_BITS)).collect()),
    ]
}

proptest! {
    #[test]
    fn any_table_comes_back_word_for_word(pieces in proptest::collection::vec(piece(), 0..8)) {
        packed(&pieces.concat());
    }
}
