/* Safetensors: number formats, checks of the reader, writer, shards. */
#include <math.h>
#include <unistd.h>

#include "model/st.h"
#include "tests/test.h"

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

/* Every half and every bfloat16 comes back from float32; rounding is to nearest even against the two neighbours. */
static void test_formats(void)
{
    int bad16 = 0, badb = 0, ties = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = f16_to_f32((uint16_t)h), y = bf16_to_f32((uint16_t)h);
        if (x == x)
            bad16 += f32_to_f16(x) != h;
        else
            bad16 += (f32_to_f16(x) & 0x7c00) != 0x7c00 || !(f32_to_f16(x) & 0x3ff);
        if (y == y)
            badb += f32_to_bf16(y) != h;
        else
            badb += (f32_to_bf16(y) & 0x7f80) != 0x7f80 || !(f32_to_bf16(y) & 0x7f);
        if ((h & 0x7fff) >= 0x7bff) /* no finite neighbour above */
            continue;
        float up = f16_to_f32((uint16_t)(h + 1)), mid = (x + up) / 2; /* exact */
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        ties += f32_to_f16(mid) != even || f32_to_f16(nextafterf(mid, x)) != h || f32_to_f16(nextafterf(mid, up)) != h + 1;
    }
    CHECK_EQ_I(bad16, 0);
    CHECK_EQ_I(badb, 0);
    CHECK_EQ_I(ties, 0);
    CHECK_EQ_I(f32_to_f16(65519.996f), 0x7bff); /* below the midpoint of 65504 and 65536 */
    CHECK_EQ_I(f32_to_f16(65520.0f), 0x7c00);
    CHECK_EQ_I(f32_to_f16(-1e30f), 0xfc00);
    CHECK_EQ_I(f32_to_f16(0x1p-25f), 0); /* tie to even zero */
    CHECK_EQ_I(f32_to_f16(0x1.8p-25f), 1);
    CHECK_EQ_I(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80); /* tie, even below */
    CHECK_EQ_I(f32_to_bf16(1.0f + 0x1.8p-7f), 0x3f82); /* tie, even above */
    CHECK_EQ_I(f32_to_bf16(3.4e38f), 0x7f80);
    float f8[4];
    const uint8_t e4[4] = {0x7e, 0x01, 0x38, 0xc0}, e5[4] = {0x7b, 0x01, 0x3c, 0xc0};
    st_to_f32(ST_F8_E4M3, e4, 0, 4, f8);
    CHECK(f8[0] == 448 && f8[1] == 0x1p-9f && f8[2] == 1 && f8[3] == -2);
    st_to_f32(ST_F8_E5M2, e5, 0, 4, f8);
    CHECK(f8[0] == 57344 && f8[1] == 0x1p-16f && f8[2] == 1 && f8[3] == -2);
}

static size_t make(uint8_t *dst, const char *head, size_t data)
{
    size_t n = strlen(head);
    memset(dst, 0, 8 + n + data);
    for (int i = 0; i < 8; i++)
        dst[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(dst + 8, head, n);
    return 8 + n + data;
}

static void check_refused(const char *head, size_t data, const char *text)
{
    uint8_t buf[2048];
    struct st_file f;
    size_t n = make(buf, head, data);
    CHECK_ERR(st_open_mem(&f, "x.safetensors", buf, n, e), E_INPUT, text);
}

static void test_refusals(void)
{
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "data bytes");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "its tensors end at 8");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "overlap");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "belong to no tensor");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "has 3 elements");
    check_refused("{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype 'F31'");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0, "63 bits");
    check_refused(" {}", 0, "must begin with '{'");
    check_refused("{}\n", 0, "must begin with '{'");
    check_refused("{\"a\":1,\"a\":2}", 0, "a");
    struct st_file f;
    uint8_t buf[64] = {0};
    CHECK_ERR(st_open_mem(&f, "x", buf, 7, e), E_INPUT, "too few");
    memset(buf, 0xff, 8);
    CHECK_ERR(st_open_mem(&f, "x", buf, 64, e), E_INPUT, "header length");
    CHECK_ERR(st_open(&f, "/nonexistent/x.safetensors", e), E_INPUT, "x.safetensors");
}

static char dir[256];

static void write_some(struct st_out *o, enum st_dtype second)
{
    const int64_t a[2] = {3, 2}, b[1] = {5}, z[2] = {0, 7};
    const float va[6] = {1, -2, 3.5f, INFINITY, -0.0f, 0x1.000002p0f}, vb[5] = {1, 2, 3, 0x1.01p0f, -1e-3f};
    const int64_t idx[2] = {-5, 1ll << 40};
    CHECK_OK(st_out_declare(o, "a.weight", ST_F32, 2, a, e));
    CHECK_OK(st_out_declare(o, "zero", ST_F32, 2, z, e));
    CHECK_OK(st_out_declare(o, "b \"quoted\"", second, 1, b, e));
    CHECK_OK(st_out_declare(o, "ids", ST_I64, 1, (const int64_t[]){2}, e));
    CHECK_OK(st_out_declare(o, "scalar", ST_F32, 0, NULL, e));
    CHECK_OK(st_out_begin(o, e));
    CHECK_OK(st_out_f32(o, "a.weight", va, 4, e));
    CHECK_OK(st_out_f32(o, "a.weight", va + 4, 2, e));
    CHECK_OK(st_out_f32(o, "b \"quoted\"", vb, 5, e));
    CHECK_OK(st_out_raw(o, "ids", idx, sizeof idx, e));
    CHECK_OK(st_out_f32(o, "scalar", &va[2], 1, e));
    CHECK_OK(st_out_commit(o, e));
}

static void check_some(const struct st_file *f, const char *name, const uint32_t *want, int64_t n)
{
    float got[8];
    const struct st_tensor *t = st_find(f, name);
    CHECK(t && t->n == n);
    if (!t || t->n != n)
        return;
    st_to_f32(t->dtype, t->data, 0, n, got);
    for (int64_t i = 0; i < n; i++)
        CHECK(bits(got[i]) == want[i]);
}

static const uint32_t want_a[6] = {0x3f800000, 0xc0000000, 0x40600000, 0x7f800000, 0x80000000, 0x3f800001};
static const uint32_t want_b16[5] = {0x3f800000, 0x40000000, 0x40400000, 0x3f800000, 0xba830000}; /* bf16: 1.00390625 ties to even 1 */

static void test_writer(void)
{
    char path[512];
    struct st_out *o = NULL;
    struct st_file f;
    snprintf(path, sizeof path, "%s/one.safetensors", dir);
    CHECK_OK(st_out_open(&o, path, e));
    CHECK_OK(st_out_meta(o, "made", "by \x01 hand", e));
    write_some(o, ST_BF16);
    CHECK_OK(st_open(&f, path, e));
    CHECK_EQ_I(f.n, 5);
    check_some(&f, "a.weight", want_a, 6);
    check_some(&f, "b \"quoted\"", want_b16, 5);
    const struct st_tensor *t = st_find(&f, "ids"), *s = st_find(&f, "scalar"), *z = st_find(&f, "zero");
    int64_t ids[2];
    CHECK(t && s && z && t->dtype == ST_I64 && s->ndim == 0 && s->n == 1 && z->n == 0 && z->ndim == 2 && z->shape[1] == 7);
    memcpy(ids, t->data, 16);
    CHECK(ids[0] == -5 && ids[1] == 1ll << 40);
    CHECK_STR(st_meta(&f, "made"), "by \x01 hand");
    CHECK(st_meta(&f, "format") == NULL && st_find(&f, "none") == NULL);
    CHECK_EQ_I((f.t[0].data - f.map.p) % 8, 0);
    st_close(&f);
    /* an aborted writer leaves nothing */
    snprintf(path, sizeof path, "%s/two.safetensors", dir);
    CHECK_OK(st_out_open(&o, path, e));
    CHECK_OK(st_out_declare(o, "x", ST_F32, 1, (const int64_t[]){4}, e));
    CHECK_OK(st_out_begin(o, e));
    st_out_abort(o);
    CHECK(!file_exists(path));
}

static int replace_index(const char *path, const char *text, struct err *e)
{
    return file_write(path, text, strlen(text), e);
}

static void test_shards(void)
{
    char sub[300], path[512];
    struct st_out *o = NULL;
    struct st_shards s;
    snprintf(sub, sizeof sub, "%s/shards", dir);
    CHECK_OK(st_out_open_dir(&o, sub, 24, e)); /* a (24 bytes) | b, ids (20 + 16 > 24) | ids, scalar */
    write_some(o, ST_F32);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", sub);
    CHECK_OK(st_shards_open(&s, path, e));
    CHECK_EQ_I(s.n_file, 3);
    CHECK_EQ_I(s.file[0].n, 2); /* the empty tensor stays with a */
    check_some(&s.file[0], "a.weight", want_a, 6);
    CHECK(st_find(&s.file[1], "b \"quoted\"") && st_find(&s.file[2], "scalar"));
    CHECK_STR(path_base(s.file[2].path), "model-00003-of-00003.safetensors");
    st_shards_close(&s);
    /* the index and the files must agree */
    CHECK_OK(replace_index(path, "{\"weight_map\": {\"a.weight\": \"model-00001-of-00003.safetensors\"}}", e));
    CHECK_ERR(st_shards_open(&s, path, e), E_INPUT, "not in weight_map");
    CHECK_OK(replace_index(path, "{\"weight_map\": {\"b\": \"model-00001-of-00003.safetensors\"}}", e));
    CHECK_ERR(st_shards_open(&s, path, e), E_INPUT, "no such tensor");
    CHECK_OK(replace_index(path, "{\"weight_map\": {\"b\": \"../model.safetensors\"}}", e));
    CHECK_ERR(st_shards_open(&s, path, e), E_INPUT, "plain file name");
    CHECK_OK(replace_index(path, "{\"weight_map\": {}}", e));
    CHECK_ERR(st_shards_open(&s, path, e), E_INPUT, "empty");
    snprintf(sub, sizeof sub, "%s/whole", dir);
    CHECK_OK(st_out_open_dir(&o, sub, 0, e));
    write_some(o, ST_F16);
    snprintf(path, sizeof path, "%s/model.safetensors", sub);
    CHECK(file_exists(path));
}

int main(void)
{
    snprintf(dir, sizeof dir, "/tmp/dashlab-test-st-%ld", (long)getpid());
    CHECK_OK(mkdir_p(dir, e));
    test_formats();
    test_refusals();
    test_writer();
    test_shards();
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
