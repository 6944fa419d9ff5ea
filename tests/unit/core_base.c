/* Errors, arena, strings, numbers as people write them, byte cursor, SHA-256. */
#include "tests/test.h"

#include <errno.h>

#include "core/arena.h"
#include "core/cur.h"
#include "core/hash.h"
#include "core/str.h"

#if defined(__SANITIZE_ADDRESS__)
#define TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_ASAN 1
#endif
#endif
#ifdef TEST_ASAN
#include <sanitizer/asan_interface.h>
#endif

static void errors(void)
{
    struct err er = ERR_INIT;
    CHECK_EQ_I(ERR(&er, E_INPUT, "tensor '%s': %d", "a", 3), -1);
    CHECK_STR(er.msg, "tensor 'a': 3");
    CHECK(er.code == E_INPUT && er.src_line > 0 && strstr(er.src_file, "core_base.c"));
    CHECK_EQ_I(err_wrap(&er, "while loading '%s'", "x"), -1);
    CHECK_STR(er.msg, "while loading 'x': tensor 'a': 3");
    CHECK(er.code == E_INPUT);
    ERR(&er, E_CHECK, "again: %s", er.msg); /* the old message may be an argument */
    CHECK_STR(er.msg, "again: while loading 'x': tensor 'a': 3");
    /* Too long: cut, marked, and not inside a UTF-8 sequence. */
    char big[4000];
    for (size_t i = 0; i + 1 < sizeof big; i++)
        big[i] = "\xc3\xa9"[i % 2];
    big[sizeof big - 1] = 0;
    for (int shift = 0; shift < 2; shift++) {
        ERR(&er, E_CHECK, "%s%s", shift ? "x" : "", big);
        size_t n = strlen(er.msg);
        CHECK(n < sizeof er.msg && n > sizeof er.msg - 8 && strcmp(er.msg + n - 4, " ...") == 0);
        CHECK((unsigned char)er.msg[n - 5] == 0xa9);
        err_wrap(&er, "%s", big);
        CHECK(strlen(er.msg) < sizeof er.msg);
    }
    errno = ENOSPC;
    CHECK_ERR(err_sys(e, "write", "f"), E_ENV, "cannot write 'f': No space left on device");
    errno = ENOENT;
    CHECK_ERR(err_sys(e, "open", "f"), E_INPUT, "cannot open 'f': No such file or directory");
    CHECK_ERR(err_nomem(e, 77, "logits"), E_ENV, "77 bytes for logits");
}

static const char *near(const char *w)
{
    static const char *const words[] = {"selector", "select", "kind", "seed", "lr", "steps"};
    const char *n = nearest_word(w, words, ARRAY_LEN(words));
    return n ? n : "-";
}

static void spelling(void)
{
    CHECK_STR(near("sekector"), "selector");
    CHECK_STR(near("selct"), "select");
    CHECK_STR(near("step"), "steps");
    CHECK_STR(near("knid"), "kind"); /* swapped neighbours are one edit */
    CHECK_STR(near("xy"), "-");      /* every two-letter word is two edits from any other */
    CHECK_STR(near("temperature"), "-");
    CHECK_STR(near(""), "-");
    char w[200];
    memset(w, 's', sizeof w - 1);
    w[sizeof w - 1] = 0;
    CHECK_STR(near(w), "-");
}

static void arenas(void)
{
    struct arena a;
    arena_init(&a, 0);
    unsigned char *p[200];
    for (size_t i = 0; i < ARRAY_LEN(p); i++) {
        p[i] = arena_alloc(&a, i * 37);
        bool zero = p[i] != NULL && (uintptr_t)p[i] % 64 == 0;
        for (size_t k = 0; zero && k < i * 37; k++)
            zero = p[i][k] == 0;
        CHECK(zero);
        if (p[i])
            memset(p[i], (int)i, i * 37);
    }
    for (size_t i = 1; i < ARRAY_LEN(p); i++)
        CHECK(p[i][0] == (unsigned char)i && p[i][i * 37 - 1] == (unsigned char)i);
    struct arena_mark m = arena_mark(&a);
    size_t used = a.used_bytes;
    for (int i = 0; i < 50; i++) {
        char *big = arena_alloc(&a, 100000);
        CHECK(big && big[99999] == 0);
        memset(big, 1, 100000);
        arena_release(&a, m);
        CHECK_EQ_I(a.used_bytes, used);
    }
    char *s = arena_printf(&a, "%d-%s", 42, "x"), *t = arena_strdup(&a, "hello"), *u = arena_strndup(&a, "hello", 3);
    CHECK_STR(s, "42-x");
    CHECK_STR(t, "hello");
    CHECK_STR(u, "hel");
    CHECK_EQ_I(p[199][0], 199);
    CHECK_OK(arena_ok(&a, "x", e));
    CHECK(arena_array(&a, SIZE_MAX / 2, 3) == NULL);
    CHECK_ERR(arena_ok(&a, "weights", e), E_ENV, "out of memory for weights");
    arena_free(&a);
    arena_free(&a);

    /* The n-th allocation fails, for every n: NULL then and ever after. */
    for (size_t limit = 64; limit < 64 * 40; limit += 64) {
        arena_init(&a, limit);
        int got = 0;
        while (arena_alloc(&a, 32))
            got++;
        CHECK(got > 0 || limit < 128); /* a red zone may take the only slot */
        CHECK(a.used_bytes <= limit && arena_alloc(&a, 0) == NULL && arena_strdup(&a, "") == NULL && arena_printf(&a, "x") == NULL);
        CHECK_ERR(arena_ok(&a, "plan", e), E_ENV, "limit");
        arena_free(&a);
    }
    arena_init(&a, 0);
    CHECK(arena_alloc(&a, SIZE_MAX - 3) == NULL && a.failed);
    arena_free(&a);
    arena_init(&a, 0);
    m = arena_mark(&a); /* of an empty arena */
    CHECK(arena_alloc(&a, 10) != NULL);
    arena_release(&a, m);
    CHECK(a.head == NULL && a.used_bytes == 0);
    arena_free(&a);
}

/* Under ASan: the byte behind an allocation and everything released is off limits. */
static void red_zones(void)
{
#ifdef TEST_ASAN
    struct arena a;
    arena_init(&a, 0);
    for (size_t n = 1; n < 300; n++) {
        char *p = arena_alloc(&a, n);
        CHECK(p && !__asan_address_is_poisoned(p + n - 1) && __asan_address_is_poisoned(p + n) && __asan_address_is_poisoned(p + n + 63));
    }
    struct arena_mark m = arena_mark(&a);
    char *p = arena_alloc(&a, 10);
    arena_release(&a, m);
    CHECK(__asan_address_is_poisoned(p));
    CHECK(arena_alloc(&a, 10) == p && !__asan_address_is_poisoned(p));
    arena_free(&a);
#endif
}

static void strings(void)
{
    struct str s = STR_INIT;
    CHECK_STR(str_c(&s), "");
    for (int i = 0; i < 1000; i++)
        str_printf(&s, "%d,", i);
    CHECK_EQ_I(s.len, 3890);
    CHECK(strncmp(str_c(&s), "0,1,2,", 6) == 0 && strcmp(str_c(&s) + 3886, "999,") == 0);
    str_clear(&s);
    str_add(&s, "a\0b", 3);
    CHECK(s.len == 3 && s.p[3] == 0 && s.p[2] == 'b');
    CHECK_OK(str_ok(&s, "x", e));
    str_add(&s, "", SIZE_MAX - 2); /* cannot be: fails before it reads */
    CHECK(s.failed && s.len == 3);
    str_puts(&s, "more");
    CHECK_EQ_I(s.len, 3);
    CHECK_ERR(str_ok(&s, "prompt", e), E_ENV, "prompt");
    str_free(&s);

    static const uint32_t cps[] = {0, 0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xe000, 0xffff, 0x10000, 0x10ffff};
    for (size_t i = 0; i < ARRAY_LEN(cps); i++) {
        int len;
        bool bad = false;
        str_clear(&s);
        str_utf8(&s, cps[i]);
        CHECK(utf8_next(s.p, s.len, &len, &bad) == cps[i] && (size_t)len == s.len && !bad);
        CHECK_EQ_I(utf8_count(s.p, s.len), 1);
        for (size_t cut = 1; cut < s.len; cut++) {
            CHECK(utf8_next(s.p, cut, &len, &bad) == 0xfffd && len == 1 && bad);
            bad = false;
        }
    }
    str_free(&s);
    /* overlong, surrogate, past the end of Unicode, stray continuation, bad lead bytes */
    static const char *const wrong[] = {"\xc0\x80",         "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",     "\xf0\x8f\xbf\xbf",
                                        "\xf4\x90\x80\x80", "\x80",     "\xff",         "\xf5\x80\x80\x80", "\xe2\x28\xa1"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        int len;
        bool bad = false;
        CHECK(utf8_next(wrong[i], strlen(wrong[i]), &len, &bad) == 0xfffd && len == 1 && bad);
    }
    CHECK_EQ_I(utf8_count("a\xff\xc3\xa9", 4), 3);
}

static void numbers(void)
{
    static const struct {
        const char *s;
        int64_t v;
    } ok[] = {{"0", 0},
              {"-12", -12},
              {"+7", 7},
              {"600M", 600000000},
              {"20k", 20000},
              {"2G", 2000000000},
              {"1e6", 1000000},
              {"1.5k", 1500},
              {"0.001M", 1000},
              {"1.000000", 1},
              {"100e-2", 1},
              {"9223372036854775807", INT64_MAX},
              {"-9223372036854775808", INT64_MIN},
              {"-1.5M", -1500000},
              {"0e99", 0},
              {"9007199254740993", 9007199254740993},
              {"9.007199254740993e15", 9007199254740993}};
    static const char *const wrong[] = {"",
                                        "-",
                                        "k",
                                        "1kk",
                                        "1K",
                                        "1.5",
                                        "1e-1",
                                        "0x10",
                                        " 1",
                                        "1 ",
                                        "nan",
                                        "inf",
                                        "1e",
                                        "1e+",
                                        "9223372036854775808",
                                        "1e19",
                                        "10000000000G",
                                        ".",
                                        "1e99999999999",
                                        "--1",
                                        "1_000"};
    int64_t v;
    double x;
    for (size_t i = 0; i < ARRAY_LEN(ok); i++) {
        v = -77;
        CHECK(parse_i64(ok[i].s, &v));
        CHECK_EQ_I(v, ok[i].v);
    }
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        v = -77;
        if (parse_i64(wrong[i], &v) || v != -77)
            printf("'%s' was taken as %" PRId64 "\n", wrong[i], v);
        CHECK(v == -77);
    }
    CHECK(parse_f64("1e-3", &x) && x == 1e-3);
    CHECK(parse_f64(".5", &x) && x == 0.5);
    CHECK(parse_f64("5.", &x) && x == 5);
    CHECK(parse_f64("-2.5k", &x) && x == -2500);
    x = 9;
    static const char *const not_real[] = {"", "nan", "inf", "-inf", "1e999", "0x1p3", "1 ", "1,5", "e5", "1e300G"};
    for (size_t i = 0; i < ARRAY_LEN(not_real); i++)
        CHECK(!parse_f64(not_real[i], &x) && x == 9);
}

static void cursor(void)
{
    static const uint8_t b[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0x80, 0x3f, 0xaa};
    struct cur c = cur_of(b, sizeof b);
    CHECK_EQ_I(cur_u8(&c), 1);
    CHECK_EQ_I(cur_u16(&c), 0x0302);
    CHECK_EQ_I(cur_u32(&c), 0x07060504);
    CHECK(*cur_bytes(&c, 2) == 8);
    CHECK(cur_f32(&c) == 1.0f);
    CHECK_EQ_I(cur_left(&c), 1);
    CHECK_OK(cur_ok(&c, "f", "x", e));
    CHECK_EQ_I(cur_u16(&c), 0);
    CHECK_EQ_I(cur_u8(&c), 0); /* stays bad although one byte is left */
    CHECK_ERR(cur_ok(&c, "a.gguf", "the header", e), E_INPUT, "a.gguf: ends at byte 14 while reading the header");
    c = cur_of(b, sizeof b);
    CHECK(cur_bytes(&c, UINT64_MAX) == NULL && c.bad && c.pos == 0);
    c = cur_of(b, 8);
    CHECK(cur_u64(&c) == 0x0807060504030201 && cur_bytes(&c, 0) != NULL && !c.bad);
    static const uint8_t half[] = {0, 0, 0, 0, 0, 0, 0xe0, 0x3f};
    c = cur_of(half, 8);
    CHECK(cur_f64(&c) == 0.5);
    c = cur_of(NULL, 0);
    CHECK(cur_u64(&c) == 0 && c.bad);
}

static void hashes(void)
{
    char hex[65];
    struct sha256 s;
    /* FIPS 180-2 examples */
    CHECK_OK(sha256_buf("", 0, hex, e));
    CHECK_STR(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_OK(sha256_buf("abc", 3, hex, e));
    CHECK_STR(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    char block[1000];
    memset(block, 'a', sizeof block);
    CHECK_OK(sha256_init(&s, e));
    for (int i = 0; i < 1000; i++)
        sha256_add(&s, block, sizeof block);
    sha256_end(&s, hex);
    CHECK_STR(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    CHECK_ERR(sha256_file("/nonexistent", hex, e), E_INPUT, "cannot open '/nonexistent'");
    CHECK_ERR(sha256_file("/", hex, e), E_INPUT, "cannot read '/': Is a directory");
}

int main(void)
{
    errors();
    spelling();
    arenas();
    red_zones();
    strings();
    numbers();
    cursor();
    hashes();
    return test_end();
}
