//! Tests of code that must not allocate, counted by the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tensorpool_core::consumer::latency::Latency;
use tensorpool_core::join::{Arrival, Basis, Drive, JoinRules, JoinedSet, Matcher, Select};
use tensorpool_core::recording::block_pool::BlockPool;
use tensorpool_core::recording::rows::{ArenaPool, Row};
use tensorpool_core::recording::stream_buffer::{BufferLimits, StreamBuffer};
use tensorpool_core::wire::event::{TagFilter, TagMatch};
use tensorpool_core::wire::layout::*;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(f: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    f();
    COUNT.with(Cell::get) - before
}

#[test]
fn allocation_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

/// requirement: service-5-3
#[test]
fn foreign_tags_cost_no_allocation() {
    let filter = TagFilter::new(["service:mine".to_owned()]);
    let mut event = vec![0; 56];
    put_u16(&mut event, MESSAGE_HEADER_BLOCK_LENGTH, EVENT_MESSAGE_BLOCK_LENGTH);
    put_u16(&mut event, MESSAGE_HEADER_TEMPLATE_ID, EVENT_MESSAGE_TEMPLATE_ID);
    put_u16(&mut event, MESSAGE_HEADER_SCHEMA_ID, SERVICE_SCHEMA_ID);
    event.extend(14u32.to_le_bytes());
    event.extend(b"service:theirs");
    let mut foreign = 0u64;
    let counted = allocations(|| {
        for _ in 0..1_000_000 {
            foreign += u64::from(filter.match_message(std::hint::black_box(&event)) == TagMatch::Foreign);
        }
    });
    assert_eq!((foreign, counted), (1_000_000, 0));
}

#[test]
fn latency_costs_no_allocation() {
    let latency = Latency::default();
    let counted = allocations(|| {
        for frame in 0..1_000_000u64 {
            latency.record(None, std::hint::black_box(frame), frame + frame % 1000);
        }
    });
    assert_eq!((latency.report().life.count, counted), (1_000_000, 0));
}

#[test]
fn recording_costs_no_allocation() {
    let memory = ArenaPool::new(BlockPool::new(4 << 20, 1 << 16).unwrap());
    let mut track = StreamBuffer::new(1, memory, BufferLimits { rows: 128, age_ns: 0 }, None);
    let (mut out, mut seq) = (Vec::with_capacity(16), 0);
    let mut record = |frames: u64| {
        for _ in 0..frames {
            let at = track.begin(1, seq, 1000).unwrap();
            // SAFETY: `begin` made room for so much.
            unsafe { std::ptr::write_bytes(at, 7, 1000) };
            track.commit(Row { seq, payload_bytes: 1000, ..Row::default() });
            seq += 1;
            track.take_full(false, true, &mut out);
            // Written to disk: the memory is recycled.
            out.clear();
        }
    };
    record(1_000);
    assert_eq!(allocations(|| record(100_000)), 0);
}

#[test]
fn join_costs_no_allocation() {
    let rules = JoinRules {
        basis: Basis::Time,
        inputs: vec![Select::Offset(0), Select::Offset(0), Select::Window(3_000)],
        drive: Drive::Input(0),
        tolerance_ns: 300,
        lateness_ns: 0,
        stale_after_ns: None,
        depth: 64,
    };
    let (mut matcher, mut set, mut seq, mut joined) = (Matcher::new(rules, 0), JoinedSet::default(), 0, 0u64);
    let mut join = |frames: u64| {
        for _ in 0..frames {
            seq += 1;
            for input in 0..3 {
                let timestamp_ns = Some(seq * 1000 + (seq * 31 + input as u64 * 17) % 200);
                matcher.push(input, Arrival { epoch: 1, seq, timestamp_ns, item: seq }, seq);
            }
            while matcher.next_set(seq, |_| true, &mut set) {
                joined += 1;
            }
        }
    };
    join(1_000);
    assert_eq!(allocations(|| join(100_000)), 0);
    assert!(joined > 100_000, "{joined}");
}
