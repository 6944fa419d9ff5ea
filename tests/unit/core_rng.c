/* CPython and numpy sequences against vectors made by them, Philox against its published vectors, the normal quantile against 60-digit
 * arithmetic. */
#include "tests/test.h"

#include <math.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/jread.h"
#include "core/rng.h"

static const char VECTORS[] = "ruler/oracle/python_random_vectors.json";

/* Decimal digits to base 2^32, least significant first; returns how many digits. */
static size_t big_digits(const char *dec, uint32_t out[8])
{
    size_t n = 1;
    memset(out, 0, 8 * sizeof *out);
    for (; *dec; dec++) {
        uint64_t carry = (uint64_t)(*dec - '0');
        for (size_t i = 0; i < 8; i++) {
            carry += (uint64_t)out[i] * 10;
            out[i] = (uint32_t)carry;
            carry >>= 32;
            if (out[i] && i + 1 > n)
                n = i + 1;
        }
    }
    return n;
}

static void seed_case(const json_t *c, struct mt19937 *r)
{
    const json_t *seed = json_object_get(c, "seed");
    uint32_t d[8];
    if (json_is_string(seed)) {
        size_t n = big_digits(json_string_value(seed), d);
        py_seed_digits(r, d, n);
    } else
        py_seed(r, (uint64_t)json_integer_value(seed));
}

static void add_hex128(struct str *s, uint64_t lo, uint64_t hi)
{
    if (hi)
        str_printf(s, "0x%" PRIx64 "%016" PRIx64, hi, lo);
    else
        str_printf(s, "0x%" PRIx64, lo);
}

/* Python's float.hex: always 13 digits, exponent with sign. */
static void add_hexfloat(struct str *s, double v)
{
    union {
        double f;
        uint64_t u;
    } b = {v};
    str_printf(s, "0x1.%013" PRIx64 "p%+d", (uint64_t)(b.u & 0xfffffffffffffull), (int)(b.u >> 52 & 2047) - 1023);
}

static void add_ints(struct str *s, const int64_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        str_printf(s, "%s%" PRId64, i ? "," : "", v[i]);
}

static void add_letters(struct str *s, struct mt19937 *r, char first, int k)
{
    int64_t v[16];
    py_choices(r, 26, k, v);
    for (int i = 0; i < k; i++)
        str_putc(s, (char)(first + v[i]));
}

static void add_uuid4(struct str *s, struct mt19937 *r)
{
    uint64_t lo, hi;
    py_getrandbits(r, 128, &lo, &hi);
    hi = (hi & ~0xf000ull) | 0x4000;
    lo = (lo & ~0xc000000000000000ull) | 0x8000000000000000ull;
    str_printf(s, "%08" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%012" PRIx64, hi >> 32, hi >> 16 & 0xffff, hi & 0xffff, lo >> 48,
               (uint64_t)(lo & 0xffffffffffffull));
}

static void mixed_order(struct str *s, struct mt19937 *r)
{
    int64_t v[4];
    uint64_t lo, hi;
    str_printf(s, "%" PRId64 ",", py_randint(r, 1000000, 9999999));
    add_letters(s, r, 'A', 5);
    CHECK(py_sample(r, 40, 1, v) == 0);
    str_printf(s, ",%" PRId64, v[0]);
    CHECK(py_sample(r, 1, 1, v) == 0);
    str_printf(s, ",%" PRId64 ",%" PRIu64 ",", v[0], py_below(r, 6175260));
    py_getrandbits(r, 128, &lo, &hi);
    add_hex128(s, lo, hi);
    CHECK(py_sample(r, 4, 4, v) == 0);
    str_putc(s, ',');
    add_ints(s, v, 4);
    str_putc(s, ',');
    add_hexfloat(s, py_random(r));
}

/* What the case's calls give, joined by ','. false: a name this test does not know. */
static bool run_case(const char *name, struct mt19937 *r, struct str *s)
{
    static int64_t v[10000];
    long a = 0, b = 0;
    uint64_t lo, hi;
    if (strcmp(name, "u32") == 0 || strcmp(name, "u32_hash700") == 0) {
        for (int i = 0; i < (name[3] ? 700 : 8); i++)
            str_printf(s, "%s%" PRIu32, i ? "," : "", mt_u32(r));
    } else if (strcmp(name, "random") == 0) {
        for (int i = 0; i < 5; i++) {
            str_puts(s, i ? "," : "");
            add_hexfloat(s, py_random(r));
        }
    } else if (sscanf(name, "getrandbits_%ld", &a) == 1) {
        for (int i = 0; i < 4; i++) {
            py_getrandbits(r, (int)a, &lo, &hi);
            str_puts(s, i ? "," : "");
            add_hex128(s, lo, hi);
        }
    } else if (sscanf(name, "randbelow_%ld", &a) == 1 || sscanf(name, "choice_range_%ld", &a) == 1) {
        for (int i = 0; i < (name[0] == 'r' ? 10 : 5); i++)
            str_printf(s, "%s%" PRIu64, i ? "," : "", py_below(r, (uint64_t)a));
    } else if (strcmp(name, "randint_7digit") == 0) {
        for (int i = 0; i < 10; i++)
            str_printf(s, "%s%" PRId64, i ? "," : "", py_randint(r, 1000000, 9999999));
    } else if (strncmp(name, "choices_", 8) == 0) {
        for (int i = 0; i < 6; i++) {
            str_puts(s, i ? "," : "");
            add_letters(s, r, name[8] == 'u' ? 'A' : 'a', name[8] == 'u' ? 5 : 6);
        }
    } else if (sscanf(name, "shuffle_%ld", &a) == 1) {
        for (long i = 0; i < a; i++)
            v[i] = i;
        py_shuffle(r, v, (size_t)a);
        add_ints(s, v, (size_t)a);
    } else if (sscanf(name, "sample_%ld_%ld", &a, &b) == 2) {
        CHECK(py_sample(r, a, b, v) == 0);
        add_ints(s, v, (size_t)b);
    } else if (strcmp(name, "uuid4_from_getrandbits") == 0) {
        for (int i = 0; i < 4; i++) {
            str_puts(s, i ? "," : "");
            add_uuid4(s, r);
        }
    } else if (strcmp(name, "mixed_order") == 0)
        mixed_order(s, r);
    else
        return false;
    return true;
}

static void join(struct str *s, const json_t *v)
{
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            str_puts(s, i ? "," : "");
            join(s, json_array_get(v, i));
        }
    } else if (json_is_string(v))
        str_puts(s, json_string_value(v));
    else
        str_printf(s, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
}

static void check_case(const json_t *c)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    const json_t *result = json_object_get(c, "result");
    struct mt19937 r, again;
    struct str got = STR_INIT, want = STR_INIT;
    int before = test_failed;
    seed_case(c, &r);
    CHECK(run_case(name, &r, &got));
    join(&want, json_is_object(result) ? json_object_get(result, "sha256") : result);
    if (json_is_object(result) || strstr(json_string_value(json_object_get(c, "call")), "sha256")) {
        char hex[65];
        CHECK_OK(sha256_buf(str_c(&got), got.len, hex, e));
        CHECK_STR(hex, str_c(&want));
    } else
        CHECK_STR(str_c(&got), str_c(&want));
    /* As many 32-bit outputs used as CPython used. */
    seed_case(c, &again);
    for (json_int_t i = json_integer_value(json_object_get(c, "draws")); i > 0; i--)
        mt_u32(&again);
    CHECK_EQ_I(mt_u32(&r), mt_u32(&again));
    if (test_failed != before)
        printf("  in case '%s'\n", name);
    str_free(&got);
    str_free(&want);
}

static void check_numpy(const json_t *c)
{
    const json_t *result = json_object_get(c, "result"), *draws = json_object_get(c, "draws");
    struct mt19937 r, again;
    np_seed(&r, (uint32_t)json_integer_value(json_object_get(c, "seed")));
    again = r;
    for (size_t i = 0; i < json_array_size(result); i++) {
        int64_t got = draws ? np_randint(&r, 10000, 99999) : (int64_t)mt_u32(&r);
        CHECK_EQ_I(got, json_integer_value(json_array_get(result, i)));
    }
    for (json_int_t i = json_integer_value(draws); i > 0; i--)
        mt_u32(&again);
    if (draws)
        CHECK_EQ_I(mt_u32(&r), mt_u32(&again));
}

/* One seed has 97 bits, which no JSON integer of ours holds: put it in quotes before parsing. */
static void quote_big(const struct str *in, struct str *out)
{
    static const char big[] = "123456789012345678901234567890";
    const char *p = strstr(str_c(in), big);
    size_t at = p ? (size_t)(p - str_c(in)) : in->len;
    str_add(out, str_c(in), at);
    if (p) {
        str_printf(out, "\"%s\"", big);
        str_puts(out, p + sizeof big - 1);
    }
}

static void python_vectors(const char *path)
{
    struct str raw = STR_INIT, text = STR_INIT;
    struct jdoc d = {0};
    CHECK_OK(file_read(path, 1 << 20, &raw, e));
    quote_big(&raw, &text);
    CHECK_OK(jdoc_parse(&d, "vectors", str_c(&text), text.len, e));
    const json_t *cases = json_object_get(d.root, "cases"), *np = json_object_get(json_object_get(d.root, "numpy_legacy"), "cases");
    CHECK_EQ_I(json_array_size(cases), 66);
    CHECK_EQ_I(json_array_size(np), 8);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(json_array_get(cases, i));
    for (size_t i = 0; i < json_array_size(np); i++)
        check_numpy(json_array_get(np, i));
    jdoc_free(&d);
    str_free(&raw);
    str_free(&text);
}

/* The first outputs, so that a tree without the data folder still tests something: from the same vectors. */
static void python_short(void)
{
    struct mt19937 r;
    py_seed(&r, 42);
    CHECK_EQ_I(mt_u32(&r), 2746317213);
    CHECK_EQ_I(mt_u32(&r), 478163327);
    py_seed(&r, 4294967301u);
    CHECK_EQ_I(mt_u32(&r), 675479763);
    np_seed(&r, 42);
    CHECK_EQ_I(np_randint(&r, 10000, 99999), 25795);
    CHECK_EQ_I(np_randint(&r, 10000, 99999), 10860);
    uint32_t before = r.mt[0];
    int idx = r.idx;
    CHECK_EQ_I(np_randint(&r, -7, -6), -7); /* one possible value: nothing is drawn */
    CHECK(r.idx == idx && r.mt[0] == before);
    CHECK_EQ_I(py_randint(&r, INT64_MIN, INT64_MIN), INT64_MIN);
    CHECK_EQ_I(py_sample(&r, 0, 0, NULL), 0);
}

/* Known answers of the Random123 distribution (philox4x32, 10 rounds). */
static void philox_vectors(void)
{
    static const struct {
        uint64_t seed, stream, index;
        uint32_t want[4];
    } v[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        uint32_t got[4];
        philox(v[i].seed, v[i].stream, v[i].index, got);
        CHECK(memcmp(got, v[i].want, sizeof got) == 0);
    }
}

/* Rounded from 60-digit arithmetic. */
static void quantiles(void)
{
    static const double pq[][2] = {
        {0x1.0000000000000p-1, 0x0.0p+0},
        {0x1.3333333333333p-4, -0x1.7085226d3e524p+0},
        {0x1.32ca57a786c22p-4, -0x1.70b374817af52p+0},
        {0x1.3333333333333p-1, 0x1.036d6c4a04b59p-2},
        {0x1.d999bb2788db0p-1, 0x1.708598f2a3b69p+0},
        {0x1.3333333333333p-2, -0x1.0c7e39582c5fbp-1},
        {0x1.ff7ced916872bp-1, 0x1.8b8cbb7204470p+1},
        {0x1.4f8b588e368f1p-17, -0x1.10f3f8843a3d9p+2},
        {0x1.b7cdfd9d7bdbbp-34, -0x1.97203597a2155p+2},
        {0x1.ec94ca210599ep-37, -0x1.aa07c04a264fbp+2},
        {0x1.c965971ea9c5cp-37, -0x1.aaba256709820p+2},
        {0x1.79ca10c924223p-67, -0x1.2865170b43a4cp+3},
        {0x1.bff2ee48e0530p-333, -0x1.546010d755221p+4},
        {0x1.56e1fc2f8f359p-997, -0x1.286074064c26ep+5},
        {0x1.fffffff768fa1p-1, 0x1.7fdc11f93a210p+2},
        {0x1.fffffffffffffp-1, 0x1.06b48528cea52p+3},
    };
    double got[ARRAY_LEN(pq)], want[ARRAY_LEN(pq)];
    for (size_t i = 0; i < ARRAY_LEN(pq); i++) {
        got[i] = normal_quantile(pq[i][0]);
        want[i] = pq[i][1];
        if (pq[i][0] >= 0.25 && pq[i][0] <= 0.75) /* 1 - p is exact there */
            CHECK(normal_quantile(1 - pq[i][0]) == -got[i]);
    }
    check_close_f64("normal_quantile", got, want, ARRAY_LEN(pq), 0, 1e-15,
                    "AS 241 claims 1e-16; plus 2 polynomials of degree 7 with positive terms, log and sqrt: 8 roundings of 2^-53");
}

static void counter_streams(void)
{
    enum { COUNT = 200000 };
    double sum = 0, sq = 0, cube = 0, four = 0, usum = 0;
    int64_t hist[7] = {0};
    for (uint64_t i = 0; i < COUNT; i++) {
        double x = ctr_normal(1, 2, i), u = ctr_uniform(3, 4, i);
        uint64_t b = ctr_below(5, 6, i, 7);
        CHECK(finite_f64(x) && u >= 0 && u < 1 && b < 7);
        if (b < 7)
            hist[b]++;
        sum += x;
        sq += x * x;
        cube += x * x * x;
        four += x * x * x * x;
        usum += u;
    }
    /* Five standard errors of each moment: sd of x, x^2, x^3, x^4 are 1, sqrt 2, sqrt 15, sqrt 96, of u sqrt(1/12). The stream is fixed: no
     * flakes. */
    double se = 5 / sqrt((double)COUNT), n = COUNT;
    CHECK(fabs(sum / n) < se);
    CHECK(fabs(sq / n - 1) < se * sqrt(2));
    CHECK(fabs(cube / n) < se * sqrt(15));
    CHECK(fabs(four / n - 3) < se * sqrt(96));
    CHECK(fabs(usum / n - 0.5) < se * sqrt(1.0 / 12));
    for (int i = 0; i < 7; i++)
        CHECK(fabs((double)hist[i] / n - 1.0 / 7) < se * sqrt(6.0 / 49));
    CHECK(ctr_below(1, 1, 9, 1) == 0);
    CHECK(ctr_uniform(1, 2, 3) == ctr_uniform(1, 2, 3) && ctr_uniform(1, 2, 3) != ctr_uniform(1, 2, 2) &&
          ctr_uniform(1, 2, 3) != ctr_uniform(1, 3, 3) && ctr_uniform(1, 2, 3) != ctr_uniform(2, 2, 3));
    int64_t v[100];
    bool seen[100] = {false};
    int moved = 0;
    ctr_permutation(9, 1, v, 100);
    for (int i = 0; i < 100; i++) {
        CHECK(v[i] >= 0 && v[i] < 100 && !seen[v[i]]);
        seen[v[i]] = true;
        moved += v[i] != i;
    }
    CHECK(moved > 80);
    ctr_permutation(9, 1, v, 0);
}

/* The same bits with any compiler, level and machine: pinned. Data order and initial weights of every run hang on them. */
static void pinned(void)
{
    CHECK(ctr_normal(0, 0, 0) == 0x1.2d769e93cb51fp+0);
    CHECK(ctr_normal(1, 2, 3) == -0x1.99765973d5d2fp+0);
    CHECK(ctr_normal(42, 7, 1000000007) == -0x1.716a741615af4p-1);
    CHECK(ctr_normal(1, 2, 77) == 0x1.bbe728d8d2478p-1);
    CHECK(ctr_normal(1, 2, 36693) == 0x1.22fa1d635b4cap+2);
    CHECK(ctr_normal(1, 2, 79302) == -0x1.1756d560a5127p+2);
    CHECK(ctr_normal(1, 2, 93343) == 0x1.0fe58909b5feap+2);
    CHECK(ctr_normal(1, 2, 97001) == -0x1.0cf9f4aaf128ap+2);
    CHECK(ctr_normal(1, 2, 194259) == -0x1.3903fa06aee9cp+2);
    CHECK(ctr_uniform(0, 0, 0) == 0x1.c2d38b1acc4fdp-1);
    CHECK(ctr_uniform(1, 2, 3) == 0x1.c1679e688a83p-5);
    CHECK_EQ_I(ctr_below(42, 7, 9, 1000000), 826310);
    static const int64_t want[8] = {3, 2, 4, 6, 5, 0, 1, 7};
    int64_t got[8];
    ctr_permutation(5, 6, got, 8);
    CHECK(memcmp(got, want, sizeof got) == 0);
}

int main(void)
{
    python_short();
    philox_vectors();
    quantiles();
    counter_streams();
    pinned();
    const char *path = test_data(VECTORS);
    if (path)
        python_vectors(path);
    else
        printf("note: %s is not there; only the built-in vectors were checked\n", VECTORS);
    return test_end();
}
