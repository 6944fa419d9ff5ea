/* YAML: the tree and its positions, every refusal with its place and excerpt, several problems in one report. */
#include "tests/test.h"

#include "core/yamlx.h"

static int parse(const char *text, struct err *e)
{
    struct arena a;
    struct ydoc d;
    arena_init(&a, 0);
    int rc = ydoc_parse(&d, &a, "m.yaml", text, strlen(text), e);
    CHECK((rc == 0) == (d.root != NULL));
    arena_free(&a);
    return rc;
}

static void tree(void)
{
    static const char text[] = "# comment\n"
                               "dash: 1\n"
                               "name: \"caf\xc3\xa9 # no comment\"\n"
                               "list: [yes, 'no', ~, 1e-3]\n"
                               "empty: {}\n"
                               "stages:\n"
                               "  - {id: a, tokens: 600M}\n"
                               "  - id: b\n"
                               "    text: |\n"
                               "      two\n"
                               "      lines\n"
                               "none:\n";
    struct arena a;
    struct ydoc d;
    arena_init(&a, 0);
    CHECK_OK(ydoc_parse(&d, &a, "m.yaml", text, sizeof text - 1, e));
    CHECK(d.root->kind == Y_MAP && d.root->n == 6 && d.root->line == 2 && d.root->col == 1);
    const struct ynode *n = y_get(d.root, "dash");
    CHECK(n && n->kind == Y_SCALAR && n->line == 2 && n->col == 7 && !n->quoted);
    CHECK_STR(n->s, "1");
    n = y_get(d.root, "name");
    CHECK_STR(n->s, "caf\xc3\xa9 # no comment");
    CHECK(n->quoted);
    n = y_get(d.root, "list");
    CHECK(n->kind == Y_SEQ && n->n == 4);
    CHECK_STR(n->item[0]->s, "yes"); /* no types here */
    CHECK(!n->item[0]->quoted && n->item[1]->quoted && n->item[1]->col == 13 && n->item[3]->line == 4);
    CHECK(y_get(d.root, "empty")->kind == Y_MAP && y_get(d.root, "empty")->n == 0);
    n = y_get(d.root, "stages");
    CHECK(n->n == 2 && n->item[1]->line == 8 && n->item[1]->col == 5);
    CHECK_STR(y_get(n->item[0], "tokens")->s, "600M");
    CHECK_STR(y_get(n->item[1], "text")->s, "two\nlines\n");
    CHECK_STR(y_get(d.root, "none")->s, "");
    CHECK(y_get(d.root, "nothing") == NULL && y_get(n, "id") == NULL && y_get(NULL, "id") == NULL);
    arena_free(&a);
}

static void refusals(void)
{
    CHECK_ERR(parse("a: 1\nb: 2\n  a: 3\n", e), E_USAGE, "m.yaml:3:");
    CHECK_ERR(parse("a: 1\nb: {x: 1, 'x': 2}\n", e), E_USAGE,
              "m.yaml:2:11: error: duplicate key 'x', first at line 2\n     2 | b: {x: 1, 'x': 2}\n       |           ^");
    CHECK_ERR(parse("a: 1\nb: 2\na: 3\nb: 4", e), E_USAGE, "m.yaml:3:1: error: duplicate key 'a', first at line 1");
    CHECK_ERR(parse("a: &x 1\n", e), E_USAGE, "m.yaml:1:4: error: anchors ('&name') are not supported");
    CHECK_ERR(parse("a: *x\n", e), E_USAGE, "m.yaml:1:4: error: aliases");
    CHECK_ERR(parse("*x : 1\n", e), E_USAGE, "m.yaml:1:1: error: aliases");
    CHECK_ERR(parse("a: !!int 1\n", e), E_USAGE, "m.yaml:1:4: error: tags");
    CHECK_ERR(parse("a: !x [1]\n", e), E_USAGE, "m.yaml:1:4: error: tags");
    CHECK_ERR(parse("a: !x {b: 1}\n", e), E_USAGE, "m.yaml:1:4: error: tags");
    CHECK_ERR(parse("%TAG ! tag:x,2000:\n---\na: 1\n", e), E_USAGE, "tag directives");
    CHECK_ERR(parse("a: 1\n---\nb: 2\n", e), E_USAGE, "m.yaml:2:1: error: a second document");
    CHECK_ERR(parse("<<: {a: 1}\n", e), E_USAGE, "m.yaml:1:1: error: merge keys");
    CHECK_ERR(parse("? [a, b]\n: 1\n", e), E_USAGE, "m.yaml:1:3: error: a key must be plain text");
    CHECK_ERR(parse("", e), E_USAGE, "m.yaml:1:1: error: the file is empty");
    CHECK_ERR(parse("# nothing\n", e), E_USAGE, "the file is empty");
    CHECK_ERR(parse("a: [1, 2\nb: 3\n", e), E_USAGE, "m.yaml:2:");
    CHECK_ERR(parse("a: \"x\\0y\"\n", e), E_USAGE, "m.yaml:1:4: error: text with a NUL byte");
    CHECK_ERR(parse("a: 1\nb: \xff\xfe\n", e), E_USAGE, "m.yaml:2:4: error: ");
    CHECK_ERR(parse("a:\n\t- 1\n", e), E_USAGE, "m.yaml:2:1: error: ");
    CHECK_OK(parse("\xef\xbb\xbf\x61: 1\n", e)); /* a byte order mark, then "a" */
    CHECK_OK(parse("a: '<<'\n'<<': 1\n", e));
    CHECK_OK(parse("%YAML 1.1\n---\na: 1\n...\n", e));
}

static void limits(void)
{
    char deep[200];
    for (int depth = 31; depth <= 34; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        deep[2 * depth] = 0;
        if (depth <= 32)
            CHECK_OK(parse(deep, e));
        else
            CHECK_ERR(parse(deep, e), E_USAGE, "m.yaml:1:33: error: nested more than 32 levels deep");
    }
    size_t n = (1 << 20) + 1;
    char *p = malloc(n + 1);
    if (!p)
        abort();
    memset(p, '[', n);
    p[n] = 0;
    CHECK_ERR(parse(p, e), E_USAGE, "the limit for YAML is 1048576");
    p[n - 1] = 0;
    CHECK_ERR(parse(p, e), E_USAGE, "levels deep");
    free(p);
    /* Many keys are checked for duplicates in n log n. */
    struct str s = STR_INIT;
    for (int i = 0; i < 50000; i++)
        str_printf(&s, "k%d: %d\n", i, i);
    CHECK_OK(parse(str_c(&s), e));
    str_puts(&s, "k77: again\n");
    CHECK_ERR(parse(str_c(&s), e), E_USAGE, "m.yaml:50001:1: error: duplicate key 'k77', first at line 78");
    str_free(&s);
    /* An arena that is full is an error, not a crash, wherever it happens. */
    int failed = 0;
    for (size_t limit = 64; limit < 8192; limit += 64) {
        struct arena a;
        struct ydoc d;
        struct err er = ERR_INIT;
        arena_init(&a, limit);
        if (ydoc_parse(&d, &a, "m", "a: [1, {b: c}]\nd: e\n", 20, &er) != 0) {
            CHECK(er.code == E_ENV && strstr(er.msg, "out of memory"));
            failed++;
        } else
            CHECK(failed > 3 && d.root->n == 2);
        arena_free(&a);
    }
}

static void problems(void)
{
    static const char text[] =
        "stages:\n"
        "  - {id: select, matrix: {sekector: [uniform]}}\n"
        "  - {id: caf\xc3\xa9, seed: 'x y'}\n"
        "long: [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bad, "
        "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb]\n";
    struct arena a;
    struct ydoc d;
    struct str out = STR_INIT;
    arena_init(&a, 0);
    CHECK_OK(ydoc_parse(&d, &a, "t.yaml", text, sizeof text - 1, e));
    struct yproblems p = {.doc = &d, .out = &out};
    CHECK_OK(y_finish(&p, e));
    const struct ynode *st = y_get(d.root, "stages"), *m = y_get(st->item[0], "matrix");
    y_problem(&p, m->key[0], "unknown key '%s' in stage 'select'; did you mean 'selector'?", m->key[0]->s);
    y_problem(&p, y_get(st->item[1], "seed"), "expected an integer");
    y_problem(&p, y_get(d.root, "long")->item[1], "bad item");
    y_problem(&p, NULL, "no stages");
    struct err er = ERR_INIT;
    CHECK_EQ_I(y_finish(&p, &er), -1);
    CHECK_EQ_I(er.code, E_USAGE);
    static const char want[] = "t.yaml:2:27: error: unknown key 'sekector' in stage 'select'; did you mean 'selector'?\n"
                               "     2 |   - {id: select, matrix: {sekector: [uniform]}}\n"
                               "       |                           ^~~~~~~~\n"
                               "t.yaml:3:22: error: expected an integer\n"
                               "     3 |   - {id: caf\xc3\xa9, seed: 'x y'}\n"
                               "       |                      ^~~~~\n"
                               "t.yaml:4:124: error: bad item\n";
    CHECK(strncmp(er.msg, want, sizeof want - 1) == 0);
    /* The long line is shown around its place: the caret stands under the word. */
    const char *line = er.msg + sizeof want - 1, *mark = strchr(line, '\n') + 1, *caret = strchr(mark, '^');
    CHECK(caret && strncmp(line + (caret - mark), "bad,", 4) == 0 && strncmp(caret, "^~~\n", 4) == 0);
    CHECK(strstr(line, "...\n") == mark - 4);
    CHECK_STR(strrchr(er.msg, '\n'), "\nt.yaml: error: no stages");
    if (test_failed)
        printf("%s\n", er.msg);

    /* More than a message holds: whole problems, then how many are left. */
    str_clear(&out);
    p = (struct yproblems){.doc = &d, .out = &out};
    for (int i = 0; i < 33; i++)
        y_problem(&p, m->key[0], "problem %d", i);
    CHECK_EQ_I(y_finish(&p, &er), -1);
    int shown = 0, left = 0;
    for (const char *q = er.msg; (q = strstr(q, "error: problem")) != NULL; q++)
        shown++;
    const char *tail = strstr(er.msg, "\n... and ");
    CHECK(tail && sscanf(tail, "\n... and %d more problems", &left) == 1 && shown + left == 33 && shown >= 5);
    CHECK(tail && tail[-1] == '~'); /* the last one shown is whole */
    str_free(&out);
    arena_free(&a);
}

static void files(void)
{
    struct arena a;
    struct ydoc d;
    arena_init(&a, 0);
    CHECK_ERR(ydoc_load(&d, &a, "/nonexistent.yaml", e), E_INPUT, "cannot open '/nonexistent.yaml'");
    arena_free(&a);
}

int main(void)
{
    tree();
    refusals();
    limits();
    problems();
    files();
    return test_end();
}
