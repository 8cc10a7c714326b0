/* jobs PATH: commit, stream, mirror and backup of a disk in use. */
#include "blocks.h"

static bool is_in_chain(cowhand_disk *disk, const char *name) {
    char *chain = NULL;
    EQUAL(cowhand_get_str(disk, "chain", &chain), 0);
    bool found = strstr(chain, name) != NULL;
    cowhand_free(chain);
    return found;
}

/* A disk with properties, for a job to open. */
static cowhand_disk *target(const char *path) {
    cowhand_disk *disk = NULL;
    new_image(path, SIZE);
    EQUAL(cowhand_create("qcow2", &disk), 0);
    EQUAL(cowhand_set_str(disk, "path", path), 0);
    return disk;
}

static void backup(cowhand_disk *disk, const char *path) {
    cowhand_disk *to = target(path);
    cowhand_job *job = NULL;
    EQUAL(cowhand_backup(disk, to, 3, 0, 0, &job), -EINVAL);
    EQUAL(cowhand_backup(disk, to, COWHAND_COPY_EVERYTHING, 2, 0, &job), -EINVAL);
    EQUAL(cowhand_backup(disk, disk, COWHAND_COPY_EVERYTHING, 0, 0, &job), -EISCONN);
    CHECK(job == NULL);
    EQUAL(cowhand_backup(disk, to, COWHAND_COPY_EVERYTHING, COWHAND_BACKUP_BREAK_WRITES, 0, &job), 0);
    fill(disk, 0, 2);
    EQUAL(cowhand_job_wait(job), 0);
    cowhand_job_info info;
    EQUAL(cowhand_job_get_info(job, &info), 0);
    CHECK(strcmp(info.status, "concluded") == 0);
    EQUAL(info.done, info.total);
    EQUAL(cowhand_job_destroy(&job), 0);
    CHECK(job == NULL);
    EQUAL(cowhand_connect(to), 0);
    EQUAL(byte_at(to, 0), 1);
    EQUAL(cowhand_destroy(&to), 0);
}

static void mirror(cowhand_disk *disk, const char *path) {
    cowhand_disk *to = target(path);
    cowhand_job *job = NULL, *second = NULL;
    /* One byte a second: it does not end before it is cancelled. */
    EQUAL(cowhand_mirror(disk, to, COWHAND_COPY_EVERYTHING, 0, 1, &job), 0);
    EQUAL(cowhand_stream(disk, COWHAND_LOWEST, 0, &second), -EBUSY);
    EQUAL(cowhand_job_pause(job), 0);
    cowhand_job_info info;
    EQUAL(cowhand_job_get_info(job, &info), 0);
    EQUAL(info.speed, 1);
    EQUAL(cowhand_job_complete(job), -EINVAL);
    EQUAL(cowhand_job_resume(job), 0);
    EQUAL(cowhand_job_set_speed(job, 0), 0);
    EQUAL(cowhand_job_wait_ready(job), 0);
    fill(disk, BLOCK, 3);
    EQUAL(cowhand_job_complete(job), 0);
    EQUAL(cowhand_job_wait(job), 0);
    EQUAL(cowhand_job_destroy(&job), 0);
    EQUAL(cowhand_destroy(&to), 0);
    CHECK(is_in_chain(disk, path));
    EQUAL(byte_at(disk, BLOCK), 3);
}

/* A job that is cancelled leaves the disk as it was; one whose disk ends, ends with it. */
static void cancelled(cowhand_disk **disk, const char *path) {
    cowhand_disk *to = target(path);
    cowhand_job *job = NULL;
    EQUAL(cowhand_mirror(*disk, to, COWHAND_COPY_EVERYTHING, COWHAND_MIRROR_SYNCHRONOUS, 1, &job), 0);
    EQUAL(cowhand_job_cancel(job), 0);
    EQUAL(cowhand_job_wait(job), -ECANCELED);
    EQUAL(cowhand_job_destroy(&job), 0);
    CHECK(!is_in_chain(*disk, path));
    EQUAL(cowhand_mirror(*disk, to, COWHAND_COPY_EVERYTHING, 0, 1, &job), 0);
    EQUAL(cowhand_destroy(disk), 0);
    CHECK(cowhand_job_wait(job) < 0);
    EQUAL(cowhand_job_destroy(&job), 0);
    EQUAL(cowhand_destroy(&to), 0);
}

static void commit_and_stream(const char *base, const char *overlay) {
    cowhand_disk *disk = NULL;
    cowhand_job *job = NULL;
    const char *name = strrchr(base, '/') + 1;
    EQUAL(cowhand_create_image(overlay, "qcow2", SIZE, name, "qcow2"), 0);
    disk = connected(overlay);
    fill(disk, 2 * BLOCK, 4);
    EQUAL(cowhand_stream(disk, COWHAND_LOWEST, 0, &job), 0);
    EQUAL(cowhand_job_wait(job), 0);
    EQUAL(cowhand_job_destroy(&job), 0);
    CHECK(!is_in_chain(disk, base));
    EQUAL(byte_at(disk, 0), 2);
    EQUAL(cowhand_destroy(&disk), 0);

    remove(overlay);
    EQUAL(cowhand_create_image(overlay, "qcow2", SIZE, name, "qcow2"), 0);
    disk = connected(overlay);
    fill(disk, 2 * BLOCK, 5);
    EQUAL(cowhand_commit(disk, 0, 1, 0, &job), 0);
    EQUAL(cowhand_job_wait_ready(job), 0);
    EQUAL(cowhand_job_complete(job), 0);
    EQUAL(cowhand_job_wait(job), 0);
    EQUAL(cowhand_job_destroy(&job), 0);
    CHECK(!is_in_chain(disk, overlay));
    EQUAL(byte_at(disk, 2 * BLOCK), 5);
    EQUAL(byte_at(disk, 0), 2);
    EQUAL(cowhand_destroy(&disk), 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char names[4][4096];
    const char *ends[] = {"backup", "mirror", "cancelled", "overlay"};
    for (int i = 0; i < 4; i++)
        snprintf(names[i], sizeof names[i], "%s.%s", argv[1], ends[i]);
    new_image(argv[1], SIZE);
    cowhand_disk *disk = connected(argv[1]);
    fill(disk, 0, 1);
    backup(disk, names[0]);
    mirror(disk, names[1]);
    cancelled(&disk, names[2]);
    commit_and_stream(names[1], names[3]);
    puts("jobs: ok");
}
