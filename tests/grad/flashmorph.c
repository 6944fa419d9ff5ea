/* FlashMorph's gradient on the gates against central finite differences in double; the targets come from the teacher alone, so the
 * gradient reaches a gate through every later layer. */
#include <math.h>
#include <unistd.h>

#include "baselines/trained.h"
#include "core/fs.h"
#include "tests/small.h"

enum { LAYERS = 4, ROWS = 3 };
#define STEP 2e-4
#define WHY "four-point differences, h = 2e-4: error h^4 f5 / 30 below 1e-10 for f5 up to 2e6, rounding 1e-15 f / h about 3e-11"

static double loss_at(struct morph *m, const int64_t *rows, double positions, const double *a)
{
    double loss = 0;
    CHECK_OK(morph_gradient(m, rows, ROWS, positions, a, &loss, NULL, e));
    return loss;
}

int main(void)
{
    struct backend *be;
    struct model *teacher;
    struct linset *lin;
    struct shard shard;
    struct morph m;
    char dir[] = "/tmp/dashlab-grad-morph-XXXXXX";
    static const int64_t rows[ROWS] = {2, 0, 1};
    double a[LAYERS] = {0.35, 0.8, 0.55, 0.1}, got[LAYERS] = {0}, twice[LAYERS] = {0}, want[LAYERS], loss = 0, ones[LAYERS] = {1, 1, 1, 1},
        positions = 0, f[4];
    static const double steps[4] = {1, -1, 2, -2};
    CHECK(mkdtemp(dir) != NULL);
    CHECK_OK(backend_open(&be, &(struct backend_opts){.name = "ref64"}, e));
    small_model(be, LAYERS, -1, &teacher, &lin);
    small_shard(dir, 4, &shard);
    CHECK_OK(morph_open(&m, teacher, lin, &shard, ROWS, 0.1, e));
    for (int i = 0; i < ROWS; i++)
        positions += morph_positions(&shard, rows[i]);
    CHECK_EQ_I((int64_t)positions, 6 + 6 + 4); /* the last quarter of 24, 24 and 19 tokens; each is predicted by the position before */
    CHECK_OK(morph_gradient(&m, rows, ROWS, positions, a, &loss, got, e));
    double again = loss_at(&m, rows, positions, a);
    CHECK(loss == again && loss > 0);
    for (int l = 0; l < LAYERS; l++) {
        double keep = a[l];
        for (int s = 0; s < 4; s++) {
            a[l] = keep + steps[s] * STEP;
            f[s] = loss_at(&m, rows, positions, a);
        }
        a[l] = keep;
        want[l] = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * STEP);
        CHECK(fabs(want[l]) > 1e-6);
    }
    check_close_f64("gates", got, want, LAYERS, 1e-9, 1e-7, WHY);
    /* rows one by one, each with the whole update's count of positions, add up to the same */
    double sum = 0;
    for (int i = 0; i < ROWS; i++)
        CHECK_OK(morph_gradient(&m, rows + i, 1, positions, a, &sum, twice, e));
    check_close_f64("loss of single rows", &sum, &loss, 1, 0, 1e-12, "sums in another order");
    check_close_f64("gates of single rows", twice, got, LAYERS, 1e-14, 1e-10, "sums in another order");
    /* gates of 1: the mixture is the teacher, no loss and no gradient */
    double at_one = 0, g1[LAYERS] = {0};
    CHECK_OK(morph_gradient(&m, rows, ROWS, positions, ones, &at_one, g1, e));
    CHECK(at_one == 0 && g1[0] == 0 && g1[LAYERS - 1] == 0);
    morph_close(&m);
    linset_close(lin);
    model_close(teacher);
    shard_close(&shard);
    CHECK_EQ_I(be->mem_used_bytes, 0);
    backend_close(be);
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
