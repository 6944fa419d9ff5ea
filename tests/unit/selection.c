/* Layer specs as text, selection.json, the choice of the K best. */
#include <unistd.h>

#include "core/fs.h"
#include "dash/selection.h"
#include "tests/test.h"

static void spec_is(const char *spec, int layers, const char *want)
{
    enum mixer_kind kind[MAX_LAYERS], again[MAX_LAYERS];
    struct str s = STR_INIT;
    CHECK_OK(layers_parse(spec, layers, kind, e));
    layers_text(kind, layers, &s);
    CHECK_STR(str_c(&s), want);
    CHECK_OK(layers_parse(str_c(&s), layers, again, e)); /* the canonical text means the same */
    CHECK(!memcmp(kind, again, sizeof kind[0] * (size_t)layers));
    str_free(&s);
}

static void test_parse(void)
{
    spec_is("0,5,11", 12, "full:0,5,11");
    spec_is("11, 5 0", 12, "full:0,5,11");
    spec_is("full:0,5 window:2,3", 12, "full:0,5 window:2,3");
    spec_is("window:3,2", 12, "window:2,3");
    spec_is("window:2 full:0 linear:1", 3, "full:0 window:2");
    spec_is("linear:0,1,2", 3, "none");
    spec_is("none", 12, "none");
    spec_is("all", 3, "full:0,1,2");
}

static void test_errors(void)
{
    enum mixer_kind k[MAX_LAYERS];
    CHECK_ERR(layers_parse("12", 12, k, e), E_USAGE, "'12' is not a layer (0..11)");
    CHECK_ERR(layers_parse("0,-1", 12, k, e), E_USAGE, "'-1' is not a layer (0..11)");
    CHECK_ERR(layers_parse("0-3", 12, k, e), E_USAGE, "is not a layer");
    CHECK_ERR(layers_parse("99999999999999999999", 12, k, e), E_USAGE, "is not a layer");
    CHECK_ERR(layers_parse("1,5,1", 12, k, e), E_USAGE, "layer 1 stands there twice");
    CHECK_ERR(layers_parse("full:1 window:1", 12, k, e), E_USAGE, "layer 1 stands there twice");
    CHECK_ERR(layers_parse("", 12, k, e), E_USAGE, "write 'none'");
    CHECK_ERR(layers_parse("wide:1", 12, k, e), E_USAGE, "unknown operator 'wide'");
    CHECK_ERR(layers_parse("full", 12, k, e), E_USAGE, "neither a run that is there nor a list of layers");
    CHECK_ERR(layers_parse("runs/sel", 12, k, e), E_USAGE, "'runs/sel': neither a run");
    CHECK_ERR(layers_parse("0 full", 12, k, e), E_USAGE, "expected 'full:'");
    CHECK_ERR(layers_parse("fullfullfullfullfull:1", 12, k, e), E_USAGE, "expected 'full:'");
    CHECK_ERR(layers_parse("full:x", 12, k, e), E_USAGE, "layer list 'full:x'");
    CHECK_ERR(layers_parse("1;2", 12, k, e), E_USAGE, "is not a layer");
}

static void test_budget(void)
{
    enum mixer_kind k[4] = {MIX_FULL, MIX_WINDOW, MIX_GDN, MIX_WINDOW};
    CHECK(layers_budget(k, 4, 0.125) == 1.25);
    CHECK(layers_budget(k, 4, 0) == 1);
}

static void top_is(struct selection *s, int k, const bool *exclude, const char *want, int64_t ties)
{
    struct str t = STR_INIT;
    selection_top(s, k, exclude);
    layers_text(s->kind, s->layers, &t);
    CHECK_STR(str_c(&t), want);
    CHECK_EQ_I(s->ties_at_cut, ties);
    str_free(&t);
}

static void test_top(void)
{
    struct selection s = {.layers = 6, .score = {1, 3, 3, 0.5, 3, 2}};
    static const bool not1[6] = {false, true}, all_but_2[6] = {true, true, false, true, true, true};
    top_is(&s, 0, NULL, "none", 0);
    top_is(&s, 1, NULL, "full:1", 2); /* layers 2 and 4 scored the same and stayed out */
    top_is(&s, 2, NULL, "full:1,2", 1);
    top_is(&s, 3, NULL, "full:1,2,4", 0);
    top_is(&s, 4, NULL, "full:1,2,4,5", 0);
    top_is(&s, 2, not1, "full:2,4", 0); /* an excluded layer is no tie */
    top_is(&s, 6, NULL, "full:0,1,2,3,4,5", 0);
    top_is(&s, 3, all_but_2, "full:2", 0);
    for (int l = 0; l < 6; l++)
        s.score[l] = -7;
    top_is(&s, 2, NULL, "full:0,1", 4);
}

static void test_file(const char *dir)
{
    struct selection s = {.method = "dash", .variant = "layer 0 searched", .layers = 5, .version = 3, .budget = 1.125, .asked = 2,
                          .tokens = 12345, .ties_at_cut = 1, .seed = 4294967295u, .filled = true, .has_p = true}, t;
    char path[1024];
    struct str id = STR_INIT;
    CHECK_OK(layers_parse("full:1 window:3", 5, s.kind, e));
    s.p[1][0] = 0.75;
    CHECK_OK(selection_save(&s, dir, e));
    CHECK_OK(selection_load(&t, path_join(path, dir, "selection.json"), e));
    CHECK_STR(t.method, "dash");
    CHECK_STR(t.variant, "layer 0 searched");
    CHECK(t.layers == 5 && t.version == 3 && t.budget == 1.125 && t.asked == 2 && t.tokens == 12345 && t.ties_at_cut == 1 &&
          t.seed == 4294967295u && t.filled);
    CHECK(!memcmp(s.kind, t.kind, 5 * sizeof s.kind[0]));
    CHECK_OK(file_read(path_join(path, dir, "identity.txt"), 1 << 16, &id, e));
    CHECK_STR(str_c(&id), "full:1 window:3\nlayers 5\nfilled true\n"); /* what dependants' keys hash: neither method nor seed */
    str_free(&id);
}

static void load_fails(const char *dir, const char *json, const char *text)
{
    char path[1024];
    struct selection s;
    CHECK_OK(file_write(path_join(path, dir, "bad.json"), json, strlen(json), e));
    CHECK_ERR(selection_load(&s, path, e), E_INPUT, text);
}

static void test_bad_files(const char *dir)
{
    struct selection s;
    char path[1024];
    CHECK_ERR(selection_load(&s, path_join(path, dir, "absent.json"), e), E_INPUT, "absent.json");
    load_fails(dir, "{", "bad.json");
    load_fails(dir, "{\"method\":\"x\",\"spec\":\"none\",\"version\":1,\"budget\":0}", "layers");
    load_fails(dir, "{\"method\":\"x\",\"spec\":\"none\",\"version\":1,\"budget\":0,\"layers\":[]}", "0 layers");
    load_fails(dir, "{\"method\":\"x\",\"spec\":\"0\",\"version\":-1,\"budget\":0,\"layers\":[{}]}", "version");
    load_fails(dir, "{\"method\":\"x\",\"spec\":\"7\",\"version\":1,\"budget\":0,\"layers\":[{}]}", "bad.json");
}

int main(void)
{
    char dir[] = "/tmp/dashlab-selection-XXXXXX";
    CHECK(mkdtemp(dir) != NULL);
    test_parse();
    test_errors();
    test_budget();
    test_top();
    test_file(dir);
    test_bad_files(dir);
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
