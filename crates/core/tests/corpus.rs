//! Every input of the fuzz corpora, and inputs close to them, through the fuzz targets.

mod fuzz_targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fuzz_targets::TARGETS;

const MUTATIONS: u64 = 40;
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// A small generator: the same inputs at every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn mutate(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = EDGES[random.below(EDGES.len())],
            2 => bytes.truncate(at),
            3 => bytes.extend_from_within(at..),
            _ => bytes.insert(at, random.next() as u8),
        }
    }
    bytes
}

#[test]
fn corpus_of_each_target_and_its_neighbours_hold() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in TARGETS {
        let mut paths: Vec<_> =
            fs::read_dir(corpora.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "{name} has no corpus");
        for path in paths {
            let input = fs::read(&path).unwrap();
            let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ input.len() as u64);
            for round in 0..=MUTATIONS {
                let bytes = if round == 0 { input.clone() } else { mutate(&input, &mut random) };
                let outcome = catch_unwind(AssertUnwindSafe(|| target(&bytes)));
                assert!(outcome.is_ok(), "{name}: {} in round {round}: {bytes:?}", path.display());
            }
        }
    }
}
