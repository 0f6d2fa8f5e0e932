/* Counts the calls of each thread to the C library's allocator; loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static __thread unsigned long count __attribute__((tls_model("initial-exec")));
static unsigned long all;

unsigned long allocations_of_this_thread(void) { return count; }
unsigned long allocations_of_all_threads(void) { return __atomic_load_n(&all, __ATOMIC_RELAXED); }

static void add(void) {
    count++;
    __atomic_fetch_add(&all, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t size) { add(); return __libc_malloc(size); }
void *calloc(size_t n, size_t size) { add(); return __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { add(); return __libc_realloc(old, size); }
void *memalign(size_t align, size_t size) { add(); return __libc_memalign(align, size); }
void *aligned_alloc(size_t align, size_t size) { add(); return __libc_memalign(align, size); }

int posix_memalign(void **out, size_t align, size_t size) {
    add();
    *out = __libc_memalign(align, size);
    return *out == NULL ? 12 : 0;
}
