/* Tells libFuzzer which edges of the extension modules were passed.

   gcc's -fsanitize-coverage=trace-pc calls one function at every edge, which libFuzzer itself no
   longer offers. Here each place in the code has one of the counters that libFuzzer reads, by a
   hash of its address. */

#include <stdint.h>

#define COUNTERS (1 << 16)

static uint8_t counters[COUNTERS];
static uintptr_t places[COUNTERS][2]; /* address and flags; only their number matters */

void
__sanitizer_cov_trace_pc(void)
{
    uint64_t place = (uint64_t)(uintptr_t)__builtin_return_address(0);
    counters[(place * UINT64_C(0x9E3779B97F4A7C15)) >> 48]++;
}

/* Called once, with the functions of the libFuzzer that will run. */
void
coverage_register(
    void (*add_counters)(uint8_t*, uint8_t*), void (*add_places)(uintptr_t*, uintptr_t*))
{
    add_counters(counters, counters + COUNTERS);
    add_places(places[0], places[COUNTERS]);
}
