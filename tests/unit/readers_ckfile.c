/* Checkpoint source: folders, shards, GGUF with permuted rows, hashes, matching. SmolLM2's 272 tensors when DASHLAB_SMOLLM2_GGUF or the
 * cache has the file. */
#include <unistd.h>

#include "core/fs.h"
#include "core/hash.h"
#include "model/ckfile.h"
#include "tests/test.h"

static float *read_all(const struct ckfile *k, const struct ck_tensor *t)
{
    float *v = malloc((size_t)(t->n + 1) * sizeof *v);
    if (!v)
        abort();
    CHECK_OK(ckfile_read_f32(k, t, v, e));
    return v;
}

/* The same model as folder and as GGUF: equal names, shapes, values and hashes; q and k rows come back in order. */
static void test_llama_pair(void)
{
    struct ckfile *h = NULL, *g = NULL;
    char ha[65], hb[65];
    CHECK_OK(ckfile_open(&h, "tests/data/readers/llama", e));
    CHECK_OK(ckfile_open(&g, "tests/data/readers/llama/model.gguf", e));
    if (!h || !g)
        return;
    CHECK(ckfile_cfg(h) && ckfile_cfg(g) && ckfile_gguf(g) && !ckfile_gguf(h));
    CHECK_OK(ckfile_match(h, ckfile_cfg(h), e));
    CHECK_OK(ckfile_match(g, ckfile_cfg(h), e));
    CHECK_EQ_I(ckfile_count(g), ckfile_count(h) + 1); /* rope_freqs */
    int permuted = 0;
    for (size_t i = 0; i < ckfile_count(h); i++) {
        const struct ck_tensor *a = ckfile_at(h, i), *b = ckfile_find(g, a->name);
        CHECK(b && a->ndim == b->ndim && a->n == b->n && a->shape[0] == b->shape[0]);
        if (!b || a->n != b->n)
            continue;
        float *x = read_all(h, a), *y = read_all(g, b);
        CHECK(memcmp(x, y, (size_t)a->n * sizeof *x) == 0);
        CHECK_OK(ckfile_sha256(h, a, ha, e));
        CHECK_OK(ckfile_sha256(g, b, hb, e));
        CHECK_STR(ha, hb);
        CHECK_OK(sha256_buf(x, (size_t)a->n * sizeof *x, hb, e));
        CHECK_STR(ha, hb);
        int64_t len = a->n / a->shape[0], row = a->shape[0] / 2;
        CHECK_OK(ckfile_read_rows_f32(g, b, row, 3, y, e));
        CHECK(memcmp(x + row * len, y, (size_t)(3 * len) * sizeof *x) == 0);
        const struct gguf_tensor *raw = gguf_find(ckfile_gguf(g), b->file_name);
        permuted += raw && memcmp(raw->data, x, raw->bytes) != 0;
        free(x);
        free(y);
    }
    CHECK_EQ_I(permuted, 4); /* q and k of two layers: the file's own order differs */
    ckfile_close(h);
    ckfile_close(g);
}

static void test_match_errors(void)
{
    struct ckfile *k = NULL;
    CHECK_OK(ckfile_open(&k, "tests/data/readers/llama", e));
    if (!k)
        return;
    struct mcfg c = *ckfile_cfg(k);
    c.tie_embeddings = false;
    CHECK_ERR(ckfile_match(k, &c, e), E_INPUT, "lm_head.weight");
    c.tie_embeddings = true;
    c.qkv_bias = true;
    CHECK_ERR(ckfile_match(k, &c, e), E_INPUT, "q_proj.bias' (32) is missing");
    c.qkv_bias = false;
    c.F = 25;
    CHECK_ERR(ckfile_match(k, &c, e), E_INPUT, "is 24 x 16, the configuration wants 25 x 16");
    c.F = 24;
    c.L = 1;
    CHECK_ERR(ckfile_match(k, &c, e), E_INPUT, "model.layers.1.input_layernorm.weight' is not part of");
    ckfile_close(k);
    CHECK_ERR(ckfile_open(&k, "tests/data/readers/llama/config.json", e), E_INPUT, "holds no tensors");
    CHECK_ERR(ckfile_open(&k, "tests/data/none", e), E_INPUT, "no such file or folder");
    CHECK_ERR(ckfile_open(&k, "tests/data/readers", e), E_INPUT, "no config.json");
    CHECK_ERR(ckfile_open(&k, "tests/test.h", e), E_INPUT, "neither a model folder");
}

/* A quantised one-dimensional tensor and rows inside blocks; types without a decoder are listed. */
static void test_lone(void)
{
    struct ckfile *k = NULL;
    struct ckfile_summary s;
    CHECK_OK(ckfile_check("tests/data/readers/llama", &s, e));
    CHECK(s.kind == CK_FOLDER && s.n_tensors == 20 && s.has_cfg && s.n_files == 2 && s.bytes == 4 * (size_t)s.n_values);
    CHECK_STR(s.dtypes, "F32 x 20");
    CHECK_OK(ckfile_check("tests/data/readers/llama/config.json", &s, e));
    CHECK(s.kind == CK_CONFIG && s.has_cfg);
    CHECK_OK(ckfile_check("tests/data/readers/quants.safetensors", &s, e));
    CHECK(s.kind == CK_SAFETENSORS && !s.has_cfg && s.n_tensors == 10);
    CHECK_OK(ckfile_check("tests/fuzz/seeds/gguf/quants", &s, e)); /* told by its first bytes */
    CHECK(s.kind == CK_GGUF && !s.has_cfg);
    CHECK_OK(ckfile_open(&k, "tests/data/readers/quants.gguf", e));
    if (!k)
        return;
    CHECK(ckfile_cfg(k) == NULL && strstr(ckfile_cfg_why(k), "general.architecture"));
    ckfile_close(k);
    struct mcfg c;
    CHECK_OK(mcfg_load(&c, "tests/data/readers/llama/model.gguf", e));
    mcfg_free(&c);
}

/* A hybrid written by us: fla's names on disk, found by canonical names too. */
static void test_fla_names(void)
{
    char dir[256], path[512], disk[256];
    struct mcfg c;
    struct st_out *o = NULL;
    struct ckfile *k = NULL;
    struct str s = STR_INIT;
    CHECK_OK(mcfg_load(&c, "tests/data/readers/llama", e));
    c.layout = LAYOUT_FLA;
    c.L = 1;
    c.mixer[0] = MIX_GDN;
    c.gdn = (struct mcfg_gdn){.heads = 2, .v_heads = 2, .head_k_dim = 8, .head_v_dim = 8, .conv_size = 4, .use_gate = true,
                              .norm_eps = 1e-6};
    snprintf(dir, sizeof dir, "/tmp/dashlab-test-ck-%ld", (long)getpid());
    CHECK_OK(st_out_open_dir(&o, dir, 0, e));
    /* by hand, so that a slip in the name map shows */
    static const struct {
        const char *name;
        int ndim;
        int64_t shape[3];
    } want[] = {{"model.embeddings.weight", 2, {20, 16}},
                {"model.layers.0.attn_norm.weight", 1, {16}},
                {"model.layers.0.attn.q_proj.weight", 2, {16, 16}},
                {"model.layers.0.attn.k_proj.weight", 2, {16, 16}},
                {"model.layers.0.attn.v_proj.weight", 2, {16, 16}},
                {"model.layers.0.attn.a_proj.weight", 2, {2, 16}},
                {"model.layers.0.attn.b_proj.weight", 2, {2, 16}},
                {"model.layers.0.attn.A_log", 1, {2}},
                {"model.layers.0.attn.dt_bias", 1, {2}},
                {"model.layers.0.attn.q_conv1d.weight", 3, {16, 1, 4}},
                {"model.layers.0.attn.k_conv1d.weight", 3, {16, 1, 4}},
                {"model.layers.0.attn.v_conv1d.weight", 3, {16, 1, 4}},
                {"model.layers.0.attn.g_proj.weight", 2, {16, 16}},
                {"model.layers.0.attn.o_norm.weight", 1, {8}},
                {"model.layers.0.attn.o_proj.weight", 2, {16, 16}},
                {"model.layers.0.mlp_norm.weight", 1, {16}},
                {"model.layers.0.mlp.gate_proj.weight", 2, {24, 16}},
                {"model.layers.0.mlp.up_proj.weight", 2, {24, 16}},
                {"model.layers.0.mlp.down_proj.weight", 2, {16, 24}},
                {"model.norm.weight", 1, {16}}};
    static const float zeros[1024];
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        CHECK_OK(st_out_declare(o, want[i].name, ST_F32, want[i].ndim, want[i].shape, e));
    CHECK_OK(st_out_begin(o, e));
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        int64_t n = want[i].shape[0];
        for (int d = 1; d < want[i].ndim; d++)
            n *= want[i].shape[d];
        CHECK_OK(st_out_f32(o, want[i].name, zeros, n, e));
    }
    CHECK_OK(st_out_commit(o, e));
    CHECK_OK(mcfg_write_json(&c, "float32", &s, e));
    snprintf(path, sizeof path, "%s/config.json", dir);
    CHECK_OK(file_write(path, s.p, s.len, e));
    CHECK_OK(ckfile_open(&k, dir, e));
    if (k) {
        CHECK_OK(ckfile_match(k, ckfile_cfg(k), e));
        CHECK(ckfile_find(k, "model.layers.0.self_attn.A_log") == ckfile_find(k, "model.layers.0.attn.A_log"));
        CHECK(ckfile_find(k, "model.embed_tokens.weight") != NULL);
        CHECK(ckfile_find(k, mcfg_disk_name(LAYOUT_FLA, "model.layers.1.self_attn.A_log", disk)) == NULL);
        ckfile_close(k);
    }
    str_free(&s);
    CHECK_OK(remove_tree(dir, e));
}

static void test_tiny(void)
{
    static const char *const dirs[] = {"a_qwen2_tied_bf16", "b_qwen2_untied_f32_sharded", "c_qwen3_bf16", "d_llama3rope_tied_f16",
                                       "e_llama_plain_f32", "f_qwen2_swa_f32",            "g_qwen2_yarn_f32"};
    if (!test_data("oracle/model/README.md")) {
        printf("part skipped: no oracle/model in the data folder\n");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        struct ckfile_summary s;
        char rel[256], path[1024];
        snprintf(rel, sizeof rel, "oracle/model/tiny/%s/config.json", dirs[i]);
        snprintf(path, sizeof path, "%s", test_data(rel));
        path[strlen(path) - strlen("/config.json")] = '\0';
        CHECK_OK(ckfile_check(path, &s, e));
        CHECK(s.has_cfg && s.n_tensors > 25);
        printf("%s: %zu tensors, %s\n", dirs[i], s.n_tensors, s.dtypes);
        struct ckfile *k = NULL;
        CHECK_OK(ckfile_open(&k, path, e));
        if (!k)
            continue;
        CHECK_EQ_I(s.n_values, mcfg_params(ckfile_cfg(k)));
        /* the first row of expected hidden[0] is the embedding row of the first id */
        struct st_file f;
        int32_t id;
        float row[128], want[128];
        strcat(path, "/expected.safetensors");
        CHECK_OK(st_open(&f, path, e));
        const struct st_tensor *ids = st_find(&f, "input_ids"), *hid = st_find(&f, "hidden");
        memcpy(&id, ids->data, 4);
        int64_t d = ckfile_cfg(k)->d;
        CHECK_OK(ckfile_read_rows_f32(k, ckfile_find(k, "model.embed_tokens.weight"), id, 1, row, e));
        st_to_f32(hid->dtype, hid->data, 0, d, want);
        CHECK(memcmp(row, want, (size_t)d * sizeof *row) == 0);
        st_close(&f);
        ckfile_close(k);
    }
}

/* hf_name, gguf_name, type, shape, hash in Hugging Face order, ... for each of the 272 tensors. */
static void smol_line(const struct ckfile *k, char *line, size_t i, int *bad)
{
    char *col[6], *save = NULL, hex[65], shape[64];
    int n = 0;
    for (char *p = strtok_r(line, "\t\n", &save); p && n < 6; p = strtok_r(NULL, "\t\n", &save))
        col[n++] = p;
    if (n < 5 || i >= ckfile_count(k)) {
        *bad += 1;
        return;
    }
    const struct ck_tensor *t = ckfile_at(k, i);
    snprintf(shape, sizeof shape, t->ndim == 2 ? "%lldx%lld" : "%lld", (long long)t->shape[0], t->ndim == 2 ? (long long)t->shape[1] : 0);
    CHECK_OK(ckfile_sha256(k, t, hex, e));
    if (strcmp(t->name, col[0]) != 0 || strcmp(t->file_name, col[1]) != 0 || strcmp(t->dtype, col[2]) != 0 || strcmp(shape, col[3]) != 0 ||
        strcmp(hex, col[4]) != 0) {
        printf("%s (%s %s %s): %s, expected %s\n", col[0], t->name, t->dtype, shape, hex, col[4]);
        *bad += 1;
    }
}

static void test_smol(void)
{
    const char *env = getenv("DASHLAB_SMOLLM2"), *home = getenv("HOME"), *tsv = test_data("oracle/model/smol/smol_tensors.tsv");
    char path[1024], line[512];
    if (env)
        snprintf(path, sizeof path, "%s/SmolLM2-135M-Instruct.Q4_1.gguf", env);
    else
        snprintf(path, sizeof path, "%s/.cache/dashlab/SmolLM2-135M-Instruct.Q4_1.gguf", home ? home : "");
    if (!tsv || !file_exists(path)) {
        printf("part skipped: SmolLM2 (%s; tests/fetch_smollm2.sh gets it)\n", tsv ? path : "no smol_tensors.tsv");
        return;
    }
    struct ckfile *k = NULL;
    CHECK_OK(ckfile_open(&k, path, e));
    if (!k)
        return;
    CHECK_OK(ckfile_match(k, ckfile_cfg(k), e));
    CHECK_EQ_I(ckfile_count(k), 272);
    const struct mcfg *c = ckfile_cfg(k);
    CHECK(c && c->arch == ARCH_LLAMA && c->L == 30 && c->d == 576 && c->F == 1536 && c->H == 9 && c->G == 3 && c->head_dim == 64 &&
          c->rope.theta == 1e5);
    CHECK(c && c->eps == (double)1e-5f && c->N == 49152 && c->bos == 1 && c->eos[0] == 2 && c->n_eos == 1 && c->pad == 2 &&
          c->tie_embeddings && c->chat_template);
    FILE *f = fopen(tsv, "r");
    int bad = 0;
    size_t i = 0;
    CHECK(f && fgets(line, sizeof line, f));
    for (; f && fgets(line, sizeof line, f); i++)
        smol_line(k, line, i, &bad);
    CHECK_EQ_I(i, 272);
    CHECK_EQ_I(bad, 0);
    printf("SmolLM2: %zu tensor hashes compared\n", i);
    if (f)
        fclose(f);
    ckfile_close(k);
}

int main(void)
{
    test_llama_pair();
    test_match_errors();
    test_lone();
    test_fla_names();
    test_tiny();
    test_smol();
    return test_end();
}
