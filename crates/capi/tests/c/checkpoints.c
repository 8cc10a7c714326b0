/* checkpoints PATH: a disk in use is checkpointed, forked, rolled back, compared, and its layers are merged. */
#include "blocks.h"

/* How often the list of checkpoints has a text. */
static int listed(cowhand_disk *disk, const char *text) {
    char *json = NULL;
    int count = 0;
    EQUAL(cowhand_checkpoints(disk, &json), 0);
    for (const char *at = json; (at = strstr(at, text)) != NULL; at += strlen(text))
        count++;
    cowhand_free(json);
    return count;
}

static void refused(cowhand_disk *disk) {
    const char *labels[] = {"none"};
    EQUAL(cowhand_checkpoint(disk, "a/b", NULL, 0, NULL), -EINVAL);
    EQUAL(cowhand_checkpoint(disk, "a", labels, 1, NULL), -EINVAL);
    EQUAL(cowhand_checkpoint(disk, "a", NULL, 1, NULL), -EFAULT);
    EQUAL(cowhand_checkpoints(disk, NULL), -EFAULT);
    EQUAL(cowhand_rollback(disk, "none", NULL), -ENOENT);
    EQUAL(cowhand_rollback(disk, NULL, NULL), -EFAULT);
    EQUAL(cowhand_collect_layers(disk, 4, NULL), -EINVAL);
    EQUAL(cowhand_delete_checkpoint(disk, "none", COWHAND_COLLECT_UNNAMED, NULL), -EINVAL);
    EQUAL(cowhand_forget(disk, "often:1", 0, COWHAND_ANY_WASTE, 0, 0, NULL, NULL), -EINVAL);
    EQUAL(cowhand_forget(disk, NULL, 0, 100, 0, 0, NULL, NULL), -EINVAL);
    EQUAL(cowhand_forget(disk, NULL, 0, 0, COWHAND_LIST_ONLY, 0, NULL, NULL), -EINVAL);
    EQUAL(cowhand_forget(disk, "last:1", 0, 0, COWHAND_SAVE_POLICY, 0, NULL, NULL), -EINVAL);
    EQUAL(listed(disk, "\"id\""), 0);
}

static void differences(cowhand_disk *disk) {
    cowhand_difference found[4];
    EQUAL(cowhand_differences(disk, "one", NULL, 0, found, 4), 2);
    EQUAL(found[0].offset, 0);
    EQUAL(found[0].len, BLOCK);
    EQUAL(found[0].checkpoint, COWHAND_DIFFERENCE_SHARED);
    EQUAL(found[0].other, COWHAND_DIFFERENCE_DATA);
    EQUAL(found[1].offset, 4 * BLOCK);
    EQUAL(cowhand_differences(disk, "one", NULL, 0, found, 1), 1);
    EQUAL(cowhand_differences(disk, "one", NULL, found[0].offset + found[0].len, found, 4), 1);
    EQUAL(cowhand_differences(disk, "one", "one", 0, found, 4), 0);
    EQUAL(cowhand_differences(disk, "one", NULL, 0, NULL, 4), -EFAULT);
}

static void fork_of(cowhand_disk *disk, const char *path, const char *first) {
    EQUAL(cowhand_fork(disk, "one", path, 2), 0);
    EQUAL(cowhand_fork(disk, "one", path, 2), -EEXIST);
    cowhand_disk *fork = connected(first);
    EQUAL(byte_at(fork, 0), 1);
    fill(fork, 0, 9);
    EQUAL(cowhand_destroy(&fork), 0);
    EQUAL(byte_at(disk, 0), 2);
    EQUAL(listed(disk, strrchr(first, '/') + 1), 1);
}

static void finished(cowhand_disk *disk, const char *keep, uint32_t flags) {
    cowhand_job *job = NULL;
    EQUAL(cowhand_forget(disk, keep, 0, COWHAND_ANY_WASTE, flags, 0, &job, NULL), 0);
    EQUAL(cowhand_job_wait(job), 0);
    EQUAL(cowhand_job_destroy(&job), 0);
}

static void merged(cowhand_disk *disk) {
    char *json = NULL;
    for (int byte = 3; byte < 6; byte++) {
        fill(disk, BLOCK, byte);
        EQUAL(cowhand_checkpoint(disk, NULL, NULL, 0, NULL), 0);
    }
    EQUAL(cowhand_forget(disk, "last:1", 0, COWHAND_ANY_WASTE, 0, 0, NULL, &json), 0);
    CHECK(strstr(json, "\"merged\":[{") != NULL);
    cowhand_free(json);
    finished(disk, "last:1", COWHAND_SAVE_POLICY);
    EQUAL(cowhand_checkpoint(disk, NULL, NULL, 0, NULL), 0);
    /* The policy is the lineage's: two checkpoints have no name, and one stays. */
    EQUAL(cowhand_forget(disk, NULL, 0, COWHAND_ANY_WASTE, 0, 0, NULL, &json), 0);
    CHECK(strstr(json, "\"forgotten\":[\"") != NULL);
    cowhand_free(json);
    finished(disk, NULL, COWHAND_SAVE_POLICY);
    EQUAL(cowhand_forget(disk, NULL, 0, COWHAND_ANY_WASTE, 0, 0, NULL, &json), 0);
    CHECK(strstr(json, "\"forgotten\":[]") != NULL);
    cowhand_free(json);
    EQUAL(byte_at(disk, BLOCK), 5);
    EQUAL(listed(disk, "\"deleted\":true"), 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char path[4096], first[4096];
    snprintf(path, sizeof path, "%s.fork.qcow2", argv[1]);
    snprintf(first, sizeof first, "%s.fork-1.qcow2", argv[1]);
    new_image(argv[1], SIZE);
    cowhand_disk *disk = connected(argv[1]);
    refused(disk);

    const char *labels[] = {"os=debian", "build=7"};
    char *id = NULL, *left = NULL;
    fill(disk, 0, 1);
    EQUAL(cowhand_checkpoint(disk, "one", labels, 2, &id), 0);
    EQUAL(cowhand_checkpoint(disk, "one", NULL, 0, NULL), -EEXIST);
    EQUAL(listed(disk, id), 1);
    EQUAL(listed(disk, "\"build\":\"7\""), 1);
    fill(disk, 0, 2);
    fill(disk, 4 * BLOCK, 2);
    differences(disk);
    fork_of(disk, path, first);

    EQUAL(cowhand_rollback(disk, id, &left), 0);
    EQUAL(byte_at(disk, 0), 1);
    EQUAL(cowhand_delete_checkpoint(disk, left, COWHAND_LIST_ONLY, NULL), 0);
    /* It is a layer, and a user of the one below it. */
    EQUAL(listed(disk, left), 2);
    EQUAL(cowhand_collect_layers(disk, COWHAND_COLLECT_UNNAMED, NULL), 0);
    EQUAL(listed(disk, left), 0);
    cowhand_free(left);
    cowhand_free(id);
    merged(disk);

    char *json = NULL;
    EQUAL(cowhand_delete_checkpoint(disk, "one", 0, &json), 0);
    CHECK(strstr(json, "\"needed\":[{") != NULL);
    cowhand_free(json);
    EQUAL(cowhand_destroy(&disk), 0);
    puts("checkpoints: ok");
}
