/* The tasks and their groups. */
#include <stdio.h>
#include <string.h>

#include "lmeval/lmeval.h"

#define M(subject, group_)                                                                                                                 \
    {                                                                                                                                      \
        "mmlu_" subject, subject, subject, LME_MMLU, group_                                                                                \
    }
static const struct lme_task tasks[LME_N_TASKS] = {
    M("abstract_algebra", 0),
    M("anatomy", 0),
    M("astronomy", 0),
    M("college_biology", 0),
    M("college_chemistry", 0),
    M("college_computer_science", 0),
    M("college_mathematics", 0),
    M("college_physics", 0),
    M("computer_security", 0),
    M("conceptual_physics", 0),
    M("electrical_engineering", 0),
    M("elementary_mathematics", 0),
    M("high_school_biology", 0),
    M("high_school_chemistry", 0),
    M("high_school_computer_science", 0),
    M("high_school_mathematics", 0),
    M("high_school_physics", 0),
    M("high_school_statistics", 0),
    M("machine_learning", 0),
    M("business_ethics", 1),
    M("clinical_knowledge", 1),
    M("college_medicine", 1),
    M("global_facts", 1),
    M("human_aging", 1),
    M("management", 1),
    M("marketing", 1),
    M("medical_genetics", 1),
    M("miscellaneous", 1),
    M("nutrition", 1),
    M("professional_accounting", 1),
    M("professional_medicine", 1),
    M("virology", 1),
    M("econometrics", 2),
    M("high_school_geography", 2),
    M("high_school_government_and_politics", 2),
    M("high_school_macroeconomics", 2),
    M("high_school_microeconomics", 2),
    M("high_school_psychology", 2),
    M("human_sexuality", 2),
    M("professional_psychology", 2),
    M("public_relations", 2),
    M("security_studies", 2),
    M("sociology", 2),
    M("us_foreign_policy", 2),
    M("formal_logic", 3),
    M("high_school_european_history", 3),
    M("high_school_us_history", 3),
    M("high_school_world_history", 3),
    M("international_law", 3),
    M("jurisprudence", 3),
    M("logical_fallacies", 3),
    M("moral_disputes", 3),
    M("moral_scenarios", 3),
    M("philosophy", 3),
    M("prehistory", 3),
    M("professional_law", 3),
    M("world_religions", 3),
    {"arc_easy", "arc_easy", "ARC-Easy", LME_ARC, -1},
    {"arc_challenge", "arc_challenge", "ARC-Challenge", LME_ARC, -1},
    {"piqa", "piqa", NULL, LME_PIQA, -1},
    {"winogrande", "winogrande", "winogrande_xl", LME_WINOGRANDE, -1},
};
static const char *const group_names[LME_N_GROUPS] = {"mmlu_stem", "mmlu_other", "mmlu_social_sciences", "mmlu_humanities", "mmlu"};
static const char *const group_aliases[LME_N_GROUPS] = {"stem", "other", "social sciences", "humanities", "mmlu"};

const struct lme_task *lme_task_at(int i)
{
    return i >= 0 && i < LME_N_TASKS ? &tasks[i] : NULL;
}

const char *lme_group_name(int i)
{
    return group_names[i];
}

const char *lme_group_alias(int i)
{
    return group_aliases[i];
}

static void add(struct lme_pick *p, const struct lme_task *t)
{
    for (int i = 0; i < p->n; i++)
        if (p->task[i] == t)
            return;
    p->task[p->n++] = t;
}

static bool add_named(struct lme_pick *p, const char *name)
{
    for (int i = 0; i < LME_N_TASKS; i++)
        if (!strcmp(tasks[i].name, name)) {
            add(p, &tasks[i]);
            return true;
        }
    for (int g = 0; g < LME_N_GROUPS; g++) {
        if (strcmp(group_names[g], name) != 0)
            continue;
        for (int k = 0; k < LME_N_GROUPS; k++)
            p->group[k] |= k == g || g == LME_N_GROUPS - 1;
        for (int i = 0; i < LME_N_SUBJECTS; i++)
            if (tasks[i].group == g || g == LME_N_GROUPS - 1)
                add(p, &tasks[i]);
        return true;
    }
    return false;
}

int lme_pick_tasks(const char *list, struct lme_pick *out, struct err *e)
{
    *out = (struct lme_pick){0};
    for (const char *s = list; *s; s += strcspn(s, ","), s += *s == ',') {
        char name[64];
        size_t n = strcspn(s, ",");
        snprintf(name, sizeof name, "%.*s", (int)MIN(n, sizeof name - 1), s);
        if (add_named(out, name))
            continue;
        const char *words[LME_N_TASKS + LME_N_GROUPS];
        for (int i = 0; i < LME_N_TASKS + LME_N_GROUPS; i++)
            words[i] = i < LME_N_TASKS ? tasks[i].name : group_names[i - LME_N_TASKS];
        const char *near = nearest_word(name, words, ARRAY_LEN(words));
        return ERR(e, E_USAGE, "unknown task '%s'%s%s%s; 'dashlab lmeval list' names them", name, near ? ", did you mean '" : "",
                   near ? near : "", near ? "'?" : "");
    }
    return out->n ? 0 : ERR(e, E_USAGE, "no task named; 'dashlab lmeval list' names them");
}
