/* Small things that every file may use: exit codes, checked arithmetic, attributes. Includes nothing of the project. */
#ifndef CORE_BASE_H
#define CORE_BASE_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdnoreturn.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define UNUSED(x) ((void)(x))

#if defined(__GNUC__)
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#else
#define PRINTF_LIKE(f, a)
#endif

/* A broken invariant of the program itself: prints file:line and the message, aborts. Never for input, memory or devices. */
#define BUG(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
noreturn void bug_at(const char *file, int line, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Checked arithmetic: false when the result does not fit; *out is then untouched. */
static inline bool mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
static inline bool mul_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Finite by bits, so that no compiler flag can optimise the question away. */
static inline bool finite_f32(float x)
{
    union { float f; uint32_t u; } v = {x};
    return (v.u & 0x7f800000u) != 0x7f800000u;
}
static inline bool finite_f64(double x)
{
    union { double f; uint64_t u; } v = {x};
    return (v.u & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}

#endif
