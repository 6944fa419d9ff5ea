/* The option parser and its help. */
#include "tests/test.h"

#include "core/opt.h"
#include "core/str.h"

static const char *const colours[] = {"red", "green", "blue", NULL};
static struct values {
    bool det, help;
    int64_t seed;
    double lr;
    const char *colour, *name;
    struct opt_list file, task;
} v;

static const struct opt table[] = {
    {.name = "det", .type = OPT_BOOL, .dst = &v.det, .help = "same bits every time", .group = "Run"},
    {.name = "seed", .type = OPT_I64, .dst = &v.seed, .arg = "N", .help = "seed of everything", .group = "Run", .lo = 0, .hi = 1e9},
    {.name = "lr", .type = OPT_F64, .dst = &v.lr, .arg = "X", .help = "learning rate", .group = "Training", .lo = 0, .hi = 1},
    {.name = "colour", .type = OPT_STR, .dst = &v.colour, .help = "paint", .words = colours},
    {.name = "name",
     .type = OPT_STR,
     .dst = &v.name,
     .arg = "TEXT",
     .help = "a very long text that goes on and on so that the help has to break it over two lines or more"},
    {.name = "file", .type = OPT_LIST, .dst = &v.file, .arg = "PATH", .help = "inputs", .group = "Run", .multi = true},
    {.name = "task", .type = OPT_LIST, .dst = &v.task, .arg = "T", .help = "task", .group = "Run"},
    {.name = "help", .type = OPT_BOOL, .dst = &v.help, .help = "this text"},
};

static const char *pos[3];
static size_t n_pos;
static char *words[32];
static int n_words;

/* One line of words, split at blanks. */
static int parse(const char *line, struct err *e)
{
    static char buf[512];
    v = (struct values){.seed = 42, .lr = 1e-3, .colour = "red", .task = {{"default"}, 1}};
    snprintf(buf, sizeof buf, "%s", line);
    n_words = 0;
    for (char *save = NULL, *w = strtok_r(buf, " ", &save); w; w = strtok_r(NULL, " ", &save))
        words[n_words++] = w;
    return opt_parse(table, ARRAY_LEN(table), n_words, words, pos, ARRAY_LEN(pos), &n_pos, e);
}

static bool given(const char *name)
{
    return opt_given(table, ARRAY_LEN(table), n_words, words, name);
}

static void accepted(void)
{
    CHECK_OK(parse("", e));
    CHECK(n_pos == 0 && v.seed == 42 && v.task.n == 1 && !given("seed"));
    CHECK_OK(parse("a --seed 7 --lr=1e-4 --det b --colour blue --name=--x", e));
    CHECK(n_pos == 2 && !strcmp(pos[1], "b") && v.seed == 7 && v.lr == 1e-4 && v.det && !strcmp(v.colour, "blue") &&
          !strcmp(v.name, "--x"));
    CHECK(given("seed") && given("det") && given("name") && !given("file") && !given("task"));
    CHECK_OK(parse("--det --no-det --seed 1 --seed 20k", e)); /* the last one wins */
    CHECK(!v.det && v.seed == 20000 && given("det"));
    CHECK_OK(parse("--task a --task b c", e));
    CHECK(v.task.n == 2 && !strcmp(v.task.v[0], "a") && n_pos == 1 && !strcmp(pos[0], "c"));
    CHECK_OK(parse("- -5 -- --seed", e)); /* standard input, a number, and whatever follows -- */
    CHECK(n_pos == 3 && !strcmp(pos[0], "-") && !strcmp(pos[1], "-5") && !strcmp(pos[2], "--seed") && !given("seed"));
    CHECK_OK(parse("--file a -- b", e)); /* -- ends a list, too */
    CHECK(v.file.n == 1 && n_pos == 1);
    CHECK_OK(parse("--name= -h", e));
    CHECK(!strcmp(v.name, "") && v.help);
    CHECK_OK(parse("--name help", e)); /* a value is no option */
    CHECK(!given("help") && !v.help);
}

static void lists(void)
{
    CHECK_OK(parse("x --file a b - --seed 3 y --file=c d", e));
    /* attached, the list takes that one word; y and d are positional */
    CHECK_EQ_I(v.file.n, 4);
    CHECK_STR(v.file.v[2], "-");
    CHECK_STR(v.file.v[3], "c");
    CHECK_EQ_I(n_pos, 3);
    CHECK_STR(pos[2], "d");
    char *argv[66];
    for (int i = 0; i < 66; i++)
        argv[i] = i ? "q" : "--file";
    CHECK_ERR(opt_parse(table, ARRAY_LEN(table), 66, argv, pos, 3, &n_pos, e), E_USAGE, "'--file': more than 64 values");
}

static void refused(void)
{
    CHECK_ERR(parse("--sed 1", e), E_USAGE, "unknown option '--sed'; did you mean '--seed'?");
    CHECK_ERR(parse("--se 1", e), E_USAGE, "unknown option '--se'"); /* no prefixes */
    CHECK_ERR(parse("--wholly-unknown", e), E_USAGE, "--help lists the options");
    CHECK_ERR(parse("--seed", e), E_USAGE, "'--seed' needs a value: --seed N");
    CHECK_ERR(parse("--seed --det", e), E_USAGE, "'--seed' needs a value");
    CHECK_ERR(parse("--name --seed=1", e), E_USAGE, "--name=--seed=1");
    CHECK_ERR(parse("--file --det", e), E_USAGE, "'--file' needs a value");
    CHECK_ERR(parse("--det=yes", e), E_USAGE, "'--det' takes no value");
    CHECK_ERR(parse("--no-seed", e), E_USAGE, "'--seed' is no flag");
    CHECK_ERR(parse("--no-dte", e), E_USAGE, "unknown option '--no-dte'");
    CHECK_ERR(parse("--seed x", e), E_USAGE, "'--seed x': expected an integer");
    CHECK_ERR(parse("--seed 20K", e), E_USAGE, "'--seed 20K': did you mean 20k?");
    CHECK_ERR(parse("--seed K", e), E_USAGE, "'--seed K': expected an integer");
    CHECK_ERR(parse("--lr 1m", e), E_USAGE, "'--lr 1m': did you mean 1M?");
    CHECK_ERR(parse("--seed 1.5", e), E_USAGE, "expected an integer");
    CHECK_ERR(parse("--seed -1", e), E_USAGE, "'--seed -1': out of range 0 to 1000000000");
    CHECK_ERR(parse("--lr nan", e), E_USAGE, "'--lr nan': expected a number");
    CHECK_ERR(parse("--lr 2", e), E_USAGE, "out of range 0 to 1");
    CHECK_ERR(parse("--colour gren", e), E_USAGE, "expected one of red, green, blue; did you mean 'green'?");
    CHECK_ERR(parse("-x", e), E_USAGE, "unknown option '-x'");
    CHECK_ERR(parse("a b c d", e), E_USAGE, "unexpected argument 'd'; at most 3 expected");
    char *one = "x";
    CHECK_ERR(opt_parse(table, ARRAY_LEN(table), 1, &one, NULL, 0, &n_pos, e), E_USAGE, "this command takes options only");
}

static void help(void)
{
    struct str s = STR_INIT;
    CHECK_OK(parse("", e));
    v.det = true;
    opt_help(&s, "dashlab paint FILE", "Paints.", "  dashlab paint x\n", table, ARRAY_LEN(table));
    CHECK_STR(str_c(&s), "usage: dashlab paint FILE\n"
                         "\n"
                         "Paints.\n"
                         "\n"
                         "Examples:\n"
                         "  dashlab paint x\n"
                         "\n"
                         "Run:\n"
                         "  --det                     same bits every time [on; --no-det]\n"
                         "  --seed N                  seed of everything [42]\n"
                         "  --file PATH...            inputs\n"
                         "  --task T                  task (may be repeated) [default]\n"
                         "\n"
                         "Training:\n"
                         "  --lr X                    learning rate [0.001]\n"
                         "\n"
                         "Options:\n"
                         "  --colour VALUE            paint: red|green|blue [red]\n"
                         "  --name TEXT               a very long text that goes on and on so that the help has to break it\n"
                         "                            over two lines or more\n"
                         "  --help                    this text\n");
    str_free(&s);
}

int main(void)
{
    accepted();
    lists();
    refused();
    help();
    return test_end();
}
