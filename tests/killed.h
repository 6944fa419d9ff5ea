/*
 * A process that dies in the middle of a computation, at a place that is the same every time: a backend whose operation table counts
 * calls of one operation and ends the process at the n-th. The parent then runs the same work again on the folder that the child left
 * behind.
 */
#ifndef TESTS_KILLED_H
#define TESTS_KILLED_H

#include <sys/wait.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "tests/test.h"

static struct killer {
    struct backend_ops table;
    const struct backend_ops *real;
    int adamw_left, kl_left, align_left; /* calls until the end; 0 = never */
} killer;

static void killer_adamw(struct backend *be, const struct op_adamw *d)
{
    if (killer.adamw_left && --killer.adamw_left == 0)
        _exit(9);
    killer.real->adamw(be, d);
}
static void killer_head_kl(struct backend *be, const struct op_head_kl *d)
{
    if (killer.kl_left && --killer.kl_left == 0)
        _exit(9);
    killer.real->head_kl(be, d);
}
static void killer_align_loss(struct backend *be, const struct op_align_loss *d)
{
    if (killer.align_left && --killer.align_left == 0)
        _exit(9);
    killer.real->align_loss(be, d);
}

/* work(ctx) in a child that dies at the given call (one of the three counts is set); checks that it did die there. The backend must have
 * no pool: threads do not survive a fork. */
static inline void run_and_kill(struct backend *be, int adamw, int kl, int align, void (*work)(void *ctx), void *ctx)
{
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        killer = (struct killer){.table = *be->ops, .real = be->ops, .adamw_left = adamw, .kl_left = kl, .align_left = align};
        killer.table.adamw = killer_adamw;
        killer.table.head_kl = killer_head_kl;
        killer.table.align_loss = killer_align_loss;
        be->ops = &killer.table;
        work(ctx);
        _exit(0); /* it was never reached */
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 9);
}

#endif
