/* stores PATH: a checkpoint of a disk in use goes to a store, and a disk begins as it; a disk in use is pushed as it is. */
#include "blocks.h"

#define NAME "s3://images/vms/c"
#define PUSHED "s3://images/vms/c-pushed"

/* The text that follows a key, as JSON writes that; the caller releases it. */
static char *value_of(const char *json, const char *key) {
    const char *at = strstr(json, key);
    CHECK(at != NULL);
    at += strlen(key);
    return strndup(at, strcspn(at, "\""));
}

static void refused(cowhand_disk *disk, const char *path) {
    cowhand_job *job = NULL;
    EQUAL(cowhand_publish(disk, "none", NAME, NULL, NULL, 0, 0, 0, &job, NULL), -ENOENT);
    EQUAL(cowhand_publish(disk, "one", "here", NULL, NULL, 0, 0, 0, &job, NULL), -EINVAL);
    EQUAL(cowhand_publish(disk, "one", NAME, NULL, NULL, 5, 0, 0, &job, NULL), -EINVAL);
    EQUAL(cowhand_publish(disk, "one", NAME, NULL, NULL, 0, 4, 0, &job, NULL), -EINVAL);
    EQUAL(cowhand_publish(disk, "one", NAME, NULL, "none", 0, 0, 0, &job, NULL), -EINVAL);
    EQUAL(cowhand_publish(disk, "one", NULL, NULL, NULL, 0, 0, 0, &job, NULL), -EFAULT);
    EQUAL(cowhand_publish(disk, "one", NAME, NULL, NULL, 0, 0, 0, NULL, NULL), -EFAULT);
    CHECK(job == NULL);
    EQUAL(cowhand_restore(path, "s3://images/vms/none", NULL, NULL, NULL), -ENOENT);
    EQUAL(cowhand_restore(path, NULL, NULL, NULL, NULL), -EFAULT);
    EQUAL(cowhand_restore(NULL, NAME, NULL, NULL, NULL), -EFAULT);
}

/* What is overwritten while the push is slow is what it was. */
static void pushed(cowhand_disk *disk) {
    cowhand_job *job = NULL, *other = NULL;
    for (uint64_t chunk = 0; chunk < 4; chunk++)
        fill(disk, chunk << 20, 3);
    EQUAL(cowhand_push(disk, PUSHED, NULL, NULL, 1 << 20, COWHAND_PUBLISH_UNCOMPRESSED, 1, &job), 0);
    fill(disk, 0, 4);
    EQUAL(cowhand_push(disk, PUSHED, NULL, NULL, 0, 0, 0, &other), -EBUSY);
    EQUAL(cowhand_job_set_speed(job, 0), 0);
    EQUAL(cowhand_job_wait(job), 0);
    EQUAL(cowhand_job_destroy(&job), 0);
    EQUAL(byte_at(disk, 0), 4);
    cowhand_disk *image = NULL;
    EQUAL(cowhand_create("raw", &image), 0);
    EQUAL(cowhand_set_str(image, "drive", "chunked:" PUSHED), 0);
    EQUAL(cowhand_set_bool(image, "read-only", true), 0);
    EQUAL(cowhand_connect(image), 0);
    EQUAL(byte_at(image, 0), 3);
    EQUAL(byte_at(image, 3 << 20), 3);
    EQUAL(cowhand_destroy(&image), 0);

    EQUAL(cowhand_push(disk, "here", NULL, NULL, 0, 0, 0, &job), -EINVAL);
    EQUAL(cowhand_push(disk, PUSHED, "none", NULL, 0, 0, 0, &job), -ENOENT);
    EQUAL(cowhand_push(disk, PUSHED, NULL, "none", 0, 0, 0, &job), -EINVAL);
    EQUAL(cowhand_push(disk, PUSHED, NULL, NULL, 5, 0, 0, &job), -EINVAL);
    EQUAL(cowhand_push(disk, PUSHED, NULL, NULL, 0, 4, 0, &job), -EINVAL);
    EQUAL(cowhand_push(disk, NULL, NULL, NULL, 0, 0, 0, &job), -EFAULT);
    EQUAL(cowhand_push(disk, PUSHED, NULL, NULL, 0, 0, 0, NULL), -EFAULT);
    CHECK(job == NULL && other == NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char path[4096];
    snprintf(path, sizeof path, "%s.new.qcow2", argv[1]);
    new_image(argv[1], SIZE);
    cowhand_disk *disk = connected(argv[1]);
    fill(disk, 0, 1);
    EQUAL(cowhand_checkpoint(disk, "one", NULL, 0, NULL), 0);
    fill(disk, 0, 2);
    refused(disk, path);

    cowhand_job *job = NULL;
    char *json = NULL;
    EQUAL(cowhand_publish(disk, "one", NAME, "none", NULL, 1 << 20, COWHAND_PUBLISH_UNCOMPRESSED, 0, &job, &json), 0);
    /* The layer is sealed: checkpoints continue. */
    EQUAL(cowhand_checkpoint(disk, "two", NULL, 0, NULL), 0);
    EQUAL(cowhand_job_wait(job), 0);
    EQUAL(cowhand_job_destroy(&job), 0);
    char *image = value_of(json, "\"image\":\"");
    CHECK(strncmp(image, NAME "@", strlen(NAME) + 1) == 0);
    cowhand_free(json);

    EQUAL(cowhand_restore(path, NAME, "none", NULL, NULL), -ENOENT);
    EQUAL(cowhand_restore(path, NAME, "one", NULL, &json), 0);
    char *again = value_of(json, "\"image\":\""), *backing = value_of(json, "\"backing\":\"");
    CHECK(strcmp(image, again) == 0);
    cowhand_free(json);
    EQUAL(cowhand_restore(path, NAME, NULL, NULL, NULL), -EEXIST);
    cowhand_disk *new = NULL;
    EQUAL(cowhand_create("qcow2", &new), 0);
    EQUAL(cowhand_set_str(new, "path", path), 0);
    EQUAL(cowhand_set_str(new, "allow-name", backing), 0);
    EQUAL(cowhand_connect(new), 0);
    EQUAL(byte_at(new, 0), 1);
    EQUAL(byte_at(disk, 0), 2);
    EQUAL(cowhand_stream(new, COWHAND_LOWEST, 0, &job), 0);
    EQUAL(cowhand_job_wait(job), 0);
    EQUAL(cowhand_job_destroy(&job), 0);
    EQUAL(cowhand_destroy(&new), 0);
    free(image);
    free(again);
    free(backing);
    pushed(disk);
    EQUAL(cowhand_destroy(&disk), 0);
    puts("stores: ok");
}
