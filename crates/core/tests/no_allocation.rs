//! What must not allocate, counted by the allocator itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tensorpool_core::event::{Address, TagFilter};
use tensorpool_core::layout::*;

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
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

/// requirement: service-5-3
#[test]
fn a_million_foreign_tags_cost_no_allocation() {
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
            foreign += u64::from(filter.judge(std::hint::black_box(&event)) == Address::Foreign);
        }
    });
    assert_eq!((foreign, counted), (1_000_000, 0));
}
