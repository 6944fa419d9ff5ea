/* JSON in and out: positions, refusals, typed getters; Python's number and string forms. */
#include "tests/test.h"

#include "core/jread.h"
#include "core/jwrite.h"
#include "core/rng.h"

/* repr() of CPython 3.11. */
static const struct {
    double v;
    const char *repr;
} reprs[] = {
    {0x0.0p+0, "0.0"},
    {-0x0.0p+0, "-0.0"},
    {0x1.0000000000000p+0, "1.0"},
    {-0x1.8000000000000p+0, "-1.5"},
    {0x1.999999999999ap-4, "0.1"},
    {0x1.4f8b588e368f1p-17, "1e-05"},
    {0x1.a36e2eb1c432dp-14, "0.0001"},
    {0x1.a36e2eb1c432cp-14, "9.999999999999999e-05"},
    {0x1.02e4b6ce5dc68p-13, "0.00012345"},
    {0x1.d6f3454000000p+26, "123456789.0"},
    {0x1.c6bf526340000p+49, "1000000000000000.0"},
    {0x1.1c37937e07fffp+53, "9999999999999998.0"},
    {0x1.1c37937e08000p+53, "1e+16"},
    {0x1.aa535d3d0c000p+53, "1.5e+16"},
    {0x1.b69b4ba630f35p+56, "1.2345678901234568e+17"},
    {0x1.0000000000000p+53, "9007199254740992.0"},
    {0x1.0f0cf064dd592p+73, "1e+22"},
    {0x1.52d02c7e14af6p+76, "1e+23"},
    {0x0.0000000000001p-1022, "5e-324"},
    {0x1.0000000000000p-1022, "2.2250738585072014e-308"},
    {0x1.fffffffffffffp+1023, "1.7976931348623157e+308"},
    {0x1.0000000000000p-44, "5.684341886080802e-14"},
    {0x1.0000000000000p-24, "5.960464477539063e-08"},
    {0x1.0000000000000p+89, "6.189700196426902e+26"},
    {0x1.3333333333333p-2, "0.3"},
    {0x1.5555555555555p-1, "0.6666666666666666"},
    {0x1.9000000000000p+6, "100.0"},
    {0x1.249ad2594c37dp+332, "1e+100"},
    {-0x1.bff2ee48e0530p-333, "-1e-100"},
    {0x1.921fb54442d18p+1, "3.141592653589793"},
    {0x1.34a456d5cfaadp+10, "1234.5678"},
    {0x1.0000000000002p+52, "4503599627370498.0"},
    {0x1.3333333333334p-2, "0.30000000000000004"},
};

static int significant(const char *s)
{
    int n = 0, zeros = 0;
    for (; *s && *s != 'e'; s++) {
        if (*s < '0' || *s > '9')
            continue;
        if (*s == '0') {
            zeros += n > 0;
            continue;
        }
        n += zeros + 1;
        zeros = 0;
    }
    return n;
}

static void floats(void)
{
    char buf[32], shorter[40];
    for (size_t i = 0; i < ARRAY_LEN(reprs); i++) {
        fmt_f64(buf, reprs[i].v);
        CHECK_STR(buf, reprs[i].repr);
    }
    union {
        uint64_t u;
        double f;
    } special[] = {{0x7ff0000000000000}, {0xfff0000000000000}, {0x7ff8000000000000}, {0xfff8000000000000}};
    static const char *const names[] = {"inf", "-inf", "nan", "nan"};
    for (size_t i = 0; i < ARRAY_LEN(special); i++) {
        fmt_f64(buf, special[i].f);
        CHECK_STR(buf, names[i]);
    }
    /* Any bits: reads back equal, and one digit less, correctly rounded, does not. */
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t w[4];
        philox(11, 0, i, w);
        union {
            uint64_t u;
            double f;
        } v = {(uint64_t)w[1] << 32 | w[0]};
        if (!finite_f64(v.f) || v.f == 0)
            continue;
        fmt_f64(buf, v.f);
        CHECK(strtod(buf, NULL) == v.f);
        int n = significant(buf);
        snprintf(shorter, sizeof shorter, "%.*e", n - 2 < 0 ? 0 : n - 2, v.f);
        CHECK(n == 1 || strtod(shorter, NULL) != v.f);
    }
}

static void writes(void)
{
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, false);
    jw_obj(&w);
    jw_kstr(&w, "a\"\\\n\x01", "caf\xc3\xa9 \xf0\x9f\x98\x80 \x7f");
    jw_ki64(&w, "n", INT64_MIN);
    jw_kf64(&w, "x", 0.1);
    jw_kbool(&w, "b", true);
    jw_key(&w, "l");
    jw_arr(&w);
    jw_null(&w);
    jw_arr(&w);
    jw_end_arr(&w);
    jw_obj(&w);
    jw_end_obj(&w);
    jw_end_arr(&w);
    jw_end_obj(&w);
    CHECK_STR(str_c(&s), "{\"a\\\"\\\\\\n\\u0001\": \"caf\xc3\xa9 \xf0\x9f\x98\x80 \x7f\", \"n\": -9223372036854775808, \"x\": 0.1, \"b\": "
                         "true, \"l\": [null, [], {}]}");
    CHECK_OK(jw_ok(&w, "test", e));

    str_clear(&s);
    jw_init(&w, &s, true);
    w.ascii = true;
    jw_obj(&w);
    jw_key(&w, "k");
    jw_arr(&w);
    jw_i64(&w, 1);
    jw_strn(&w, "\xc3\xa9\xf0\x9f\x98\x80\x7f\0\xff", 9);
    jw_end_arr(&w);
    jw_key(&w, "o");
    jw_obj(&w);
    jw_end_obj(&w);
    jw_end_obj(&w);
    CHECK_STR(str_c(&s), "{\n  \"k\": [\n    1,\n    \"\\u00e9\\ud83d\\ude00\\u007f\\u0000\\ufffd\"\n  ],\n  \"o\": {}\n}");

    str_clear(&s);
    jw_init(&w, &s, false);
    jw_arr(&w);
    union {
        uint64_t u;
        double f;
    } nan = {0x7ff8000000000000};
    jw_f64(&w, nan.f);
    jw_f64(&w, 2);
    jw_end_arr(&w);
    CHECK_STR(str_c(&s), "[null, 2.0]");
    CHECK_ERR(jw_ok(&w, "metrics", e), E_NUMERIC, "metrics: holds a number that is not finite");
    str_free(&s);
}

static int parse(const char *text, struct err *e)
{
    struct jdoc d;
    int rc = jdoc_parse(&d, "t.json", text, strlen(text), e);
    jdoc_free(&d);
    return rc;
}

static void refusals(void)
{
    CHECK_OK(parse("{\"a\": [1, 2.5, \"x\", null, true]}", e));
    CHECK_OK(parse("  3 ", e));
    CHECK_ERR(parse("", e), E_INPUT, "t.json:1:1: is empty");
    CHECK_ERR(parse("{\n  \"a\": 1,\n  \"a\": 2}", e), E_INPUT, "t.json:3:");
    CHECK_ERR(parse("{\"a\": 1, \"a\": 2}", e), E_INPUT, "duplicate");
    CHECK_ERR(parse("[NaN]", e), E_INPUT, "t.json:1:");
    CHECK_ERR(parse("[Infinity]", e), E_INPUT, "t.json:1:");
    CHECK_ERR(parse("[1e999]", e), E_INPUT, "overflow");
    CHECK_ERR(parse("[123456789012345678901234567890]", e), E_INPUT, "too big");
    CHECK_ERR(parse("[1] x", e), E_INPUT, "t.json:1:");
    CHECK_ERR(parse("[1,\n 2,\n", e), E_INPUT, "t.json:3:");
    CHECK_ERR(parse("[\"\xff\"]", e), E_INPUT, "t.json:1:");
    CHECK_ERR(parse("[\"\\u0000\"]", e), E_INPUT, "t.json:1:");
    CHECK_ERR(parse("[01]", e), E_INPUT, "t.json:1:");
    CHECK_ERR(parse("{\"a\" 1}", e), E_INPUT, "t.json:1:");
    struct jdoc d;
    CHECK_ERR(jdoc_parse(&d, "nul", "[1]\0", 4, e), E_INPUT, "nul:1:");
    CHECK(d.root == NULL);
    CHECK_ERR(jdoc_load(&d, "/nonexistent/x.json", 0, e), E_INPUT, "cannot open '/nonexistent/x.json': No such file or directory");
}

static void depth_and_size(void)
{
    char deep[600];
    for (int depth = 63; depth <= 66; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        deep[2 * depth] = 0;
        if (depth <= 64)
            CHECK_OK(parse(deep, e));
        else
            CHECK_ERR(parse(deep, e), E_INPUT, "t.json:1:65: nested more than 64 levels deep");
    }
    CHECK_OK(parse("[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[\"]", e));
    /* A megabyte of open brackets neither recurses nor is handed to the parser. */
    size_t n = 1 << 20;
    char *p = malloc(n + 1);
    if (!p)
        abort();
    memset(p, '[', n);
    p[n] = 0;
    CHECK_ERR(parse(p, e), E_INPUT, "levels deep");
    free(p);
    /* 24 MB of empty objects would take gigabytes as a tree. */
    n = (size_t)24 << 20;
    p = malloc(n + 1);
    if (!p)
        abort();
    p[0] = '[';
    for (size_t i = 1; i < n; i++)
        p[i] = "{},"[(i - 1) % 3];
    p[n] = 0;
    CHECK_ERR(parse(p, e), E_INPUT, "MiB as a tree");
    free(p);
}

static void getters(void)
{
    struct jdoc d;
    int64_t i = -1;
    double x = -1;
    bool b = false;
    const char *s = "";
    const json_t *o;
    static const char text[] = "{\"i\": 7, \"f\": 0.5, \"s\": \"hi\", \"t\": true, \"z\": null, \"o\": {\"k\": \"v\"}, \"l\": [1]}";
    CHECK_OK(jdoc_parse(&d, "config.json", text, sizeof text - 1, e));
    CHECK_OK(jget_i64(&d, d.root, "", "i", 0, 10, &i, e));
    CHECK_EQ_I(i, 7);
    CHECK_OK(jget_f64(&d, d.root, "", "i", &x, e)); /* an integer is a number */
    CHECK(x == 7);
    CHECK_OK(jget_f64(&d, d.root, "", "f", &x, e));
    CHECK(x == 0.5);
    CHECK_OK(jget_bool_opt(&d, d.root, "", "t", &b, e));
    CHECK(b);
    CHECK_OK(jget_str(&d, d.root, "", "s", &s, e));
    CHECK_STR(s, "hi");
    CHECK_OK(jget_arr(&d, d.root, "", "l", &o, e));
    CHECK_OK(jget_obj(&d, d.root, "", "o", &o, e));
    CHECK_ERR(jget_f64(&d, o, "o", "k", &x, e), E_INPUT, "config.json: o.k: expected a number, found a string");
    /* absent and null leave the value alone */
    i = 3, x = 4, s = "keep";
    CHECK_OK(jget_i64_opt(&d, d.root, "", "z", 0, 1, &i, e));
    CHECK_OK(jget_i64_opt(&d, d.root, "", "none", 0, 1, &i, e));
    CHECK_OK(jget_f64_opt(&d, d.root, "", "z", &x, e));
    CHECK_OK(jget_str_opt(&d, d.root, "", "none", &s, e));
    CHECK_OK(jget_bool_opt(&d, d.root, "", "z", &b, e));
    CHECK(i == 3 && x == 4 && b);
    CHECK_STR(s, "keep");
    CHECK_ERR(jget_i64(&d, d.root, "", "none", 0, 1, &i, e), E_INPUT, "config.json: none: missing; expected an integer");
    CHECK_ERR(jget_i64(&d, d.root, "", "z", 0, 1, &i, e), E_INPUT, "config.json: z: expected an integer, found null");
    CHECK_ERR(jget_i64(&d, d.root, "", "i", 8, 9, &i, e), E_INPUT, "config.json: i: 7 is out of range 8 to 9");
    CHECK_ERR(jget_i64_opt(&d, d.root, "", "f", 0, 9, &i, e), E_INPUT, "found a number with a fraction");
    CHECK_ERR(jget_bool_opt(&d, d.root, "", "i", &b, e), E_INPUT, "expected true or false, found an integer");
    CHECK_ERR(jget_str_opt(&d, d.root, "", "o", &s, e), E_INPUT, "expected a string, found an object");
    CHECK_ERR(jget_obj(&d, d.root, "", "l", &o, e), E_INPUT, "config.json: l: expected an object, found an array");
    CHECK_ERR(jget_arr(&d, d.root, "", "t", &o, e), E_INPUT, "config.json: t: expected an array, found a boolean");
    CHECK_ERR(jget_str(&d, json_object_get(d.root, "l"), "l", "x", &s, e), E_INPUT, "config.json: l: expected an object, found an array");
    CHECK_ERR(jget_str(&d, NULL, "", "x", &s, e), E_INPUT, "config.json: top level: expected an object, found nothing");
    CHECK_EQ_I(i, 3);
    jdoc_free(&d);
}

int main(void)
{
    floats();
    writes();
    refusals();
    depth_and_size();
    getters();
    return test_end();
}
