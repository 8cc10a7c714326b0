/* wrong PATH: handles and pointers that are null, of the other type, made up, or of what was destroyed. */
#include "check.h"

/* Every function that takes a disk, with this handle. */
static void no_disk(cowhand_disk *disk) {
    char buf[512];
    char *text = NULL;
    bool yes;
    uint64_t number;
    cowhand_queue *queue;
    cowhand_extent extent;
    cowhand_limit limit = {"iops-total", 1};
    cowhand_disk *copy = disk;
    EQUAL(cowhand_set_str(disk, "path", "x"), -EBADF);
    EQUAL(cowhand_set_bool(disk, "discard", true), -EBADF);
    EQUAL(cowhand_set_u64(disk, "num-queues", 1), -EBADF);
    EQUAL(cowhand_get_str(disk, "path", &text), -EBADF);
    EQUAL(cowhand_get_bool(disk, "connected", &yes), -EBADF);
    EQUAL(cowhand_get_u64(disk, "capacity", &number), -EBADF);
    EQUAL(cowhand_connect(disk), -EBADF);
    EQUAL(cowhand_start(disk), -EBADF);
    EQUAL(cowhand_get_queue(disk, 0, &queue), -EBADF);
    EQUAL(cowhand_read_blocking(disk, 0, buf, 512), -EBADF);
    EQUAL(cowhand_write_blocking(disk, 0, buf, 512, 0), -EBADF);
    EQUAL(cowhand_flush_blocking(disk), -EBADF);
    EQUAL(cowhand_discard_blocking(disk, 0, 512), -EBADF);
    EQUAL(cowhand_write_zeroes_blocking(disk, 0, 512, 0), -EBADF);
    EQUAL(cowhand_extents(disk, 0, 512, &extent, 1), -EBADF);
    EQUAL(cowhand_resize(disk, 512, 0), -EBADF);
    EQUAL(cowhand_set_limits(disk, &limit, 1), -EBADF);
    EQUAL(cowhand_get_limits(disk, &text), -EBADF);
    EQUAL(cowhand_statistics(disk, &text), -EBADF);
    EQUAL(cowhand_snapshots(disk, &text), -EBADF);
    EQUAL(cowhand_create_snapshot(disk, "x"), -EBADF);
    EQUAL(cowhand_apply_snapshot(disk, "x"), -EBADF);
    EQUAL(cowhand_delete_snapshot(disk, "x"), -EBADF);
    cowhand_job *job = NULL;
    EQUAL(cowhand_commit(disk, 0, 1, 0, &job), -EBADF);
    EQUAL(cowhand_stream(disk, COWHAND_LOWEST, 0, &job), -EBADF);
    EQUAL(cowhand_mirror(disk, disk, 0, 0, 0, &job), -EBADF);
    EQUAL(cowhand_backup(disk, disk, 0, 0, 0, &job), -EBADF);
    cowhand_difference difference;
    EQUAL(cowhand_checkpoint(disk, "x", NULL, 0, &text), -EBADF);
    EQUAL(cowhand_checkpoints(disk, &text), -EBADF);
    EQUAL(cowhand_rollback(disk, "x", &text), -EBADF);
    EQUAL(cowhand_fork(disk, "x", "y", 0), -EBADF);
    EQUAL(cowhand_delete_checkpoint(disk, "x", 0, &text), -EBADF);
    EQUAL(cowhand_collect_layers(disk, 0, &text), -EBADF);
    EQUAL(cowhand_forget(disk, NULL, 0, COWHAND_ANY_WASTE, 0, 0, &job, &text), -EBADF);
    EQUAL(cowhand_differences(disk, "x", NULL, 0, &difference, 1), -EBADF);
    EQUAL(cowhand_publish(disk, "x", "s3://b/f/n", NULL, NULL, 0, 0, 0, &job, &text), -EBADF);
    EQUAL(cowhand_push(disk, "s3://b/f/n", NULL, NULL, 0, 0, 0, &job), -EBADF);
    CHECK(job == NULL);
    EQUAL(cowhand_destroy(&copy), disk ? -EBADF : 0);
    CHECK(text == NULL);
}

static void no_queue(cowhand_queue *queue) {
    char buf[512];
    struct iovec iov = {buf, 512};
    cowhand_completion completion;
    EQUAL(cowhand_read(queue, 0, buf, 512, 0, 0), -EBADF);
    EQUAL(cowhand_write(queue, 0, buf, 512, 0, 0), -EBADF);
    EQUAL(cowhand_readv(queue, 0, &iov, 1, 0, 0), -EBADF);
    EQUAL(cowhand_writev(queue, 0, &iov, 1, 0, 0), -EBADF);
    EQUAL(cowhand_flush(queue, 0, 0), -EBADF);
    EQUAL(cowhand_discard(queue, 0, 512, 0, 0), -EBADF);
    EQUAL(cowhand_write_zeroes(queue, 0, 512, 0, 0), -EBADF);
    EQUAL(cowhand_do_io(queue, &completion, 0, 1, 0), -EBADF);
    EQUAL(cowhand_completion_fd(queue), -EBADF);
}

static void no_job(cowhand_job *job) {
    cowhand_job_info info;
    cowhand_job *copy = job;
    EQUAL(cowhand_job_get_info(job, &info), -EBADF);
    EQUAL(cowhand_job_pause(job), -EBADF);
    EQUAL(cowhand_job_resume(job), -EBADF);
    EQUAL(cowhand_job_set_speed(job, 1), -EBADF);
    EQUAL(cowhand_job_cancel(job), -EBADF);
    EQUAL(cowhand_job_complete(job), -EBADF);
    EQUAL(cowhand_job_wait_ready(job), -EBADF);
    EQUAL(cowhand_job_wait(job), -EBADF);
    EQUAL(cowhand_job_destroy(&copy), job ? -EBADF : 0);
}

/* Null wherever a pointer is taken. */
static void null_pointers(cowhand_disk *disk) {
    cowhand_disk *made;
    EQUAL(cowhand_create(NULL, &made), -EFAULT);
    EQUAL(cowhand_create("qcow2", NULL), -EFAULT);
    EQUAL(cowhand_destroy(NULL), -EFAULT);
    EQUAL(cowhand_create_image(NULL, "qcow2", 512, NULL, NULL), -EFAULT);
    EQUAL(cowhand_create_image("x", NULL, 512, NULL, NULL), -EFAULT);
    EQUAL(cowhand_set_str(disk, NULL, "x"), -EFAULT);
    EQUAL(cowhand_set_str(disk, "path", NULL), -EFAULT);
    EQUAL(cowhand_set_bool(disk, NULL, true), -EFAULT);
    EQUAL(cowhand_set_u64(disk, NULL, 1), -EFAULT);
    EQUAL(cowhand_get_str(disk, "path", NULL), -EFAULT);
    EQUAL(cowhand_get_bool(disk, "connected", NULL), -EFAULT);
    EQUAL(cowhand_get_u64(disk, "capacity", NULL), -EFAULT);
    EQUAL(cowhand_get_queue(disk, 0, NULL), -EFAULT);
    EQUAL(cowhand_read_blocking(disk, 0, NULL, 512), -EFAULT);
    EQUAL(cowhand_write_blocking(disk, 0, NULL, 512, 0), -EFAULT);
    EQUAL(cowhand_set_limits(disk, NULL, 1), -EFAULT);
    EQUAL(cowhand_get_limits(disk, NULL), -EFAULT);
    EQUAL(cowhand_statistics(disk, NULL), -EFAULT);
    EQUAL(cowhand_snapshots(disk, NULL), -EFAULT);
    EQUAL(cowhand_commit(disk, 0, 1, 0, NULL), -EFAULT);
    EQUAL(cowhand_stream(disk, COWHAND_LOWEST, 0, NULL), -EFAULT);
    EQUAL(cowhand_mirror(disk, disk, 0, 0, 0, NULL), -EFAULT);
    EQUAL(cowhand_backup(disk, disk, 0, 0, 0, NULL), -EFAULT);
    EQUAL(cowhand_job_destroy(NULL), -EFAULT);
    EQUAL(cowhand_create_snapshot(disk, NULL), -EFAULT);
    CHECK(strstr(cowhand_error_message(), "name is null"));
    cowhand_free(NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(strcmp(cowhand_error_message(), "") == 0);
    new_image(argv[1], 1 << 20);
    cowhand_disk *disk = connected(argv[1]);
    cowhand_queue *queue = started(disk);
    null_pointers(disk);
    no_disk(NULL);
    CHECK(strstr(cowhand_error_message(), "null"));
    no_disk((cowhand_disk *)queue);
    no_disk((cowhand_disk *)argv);
    no_disk((cowhand_disk *)(uintptr_t)1);
    no_queue(NULL);
    no_queue((cowhand_queue *)disk);
    no_queue((cowhand_queue *)argv);
    no_job(NULL);
    no_job((cowhand_job *)disk);
    no_job((cowhand_job *)argv);

    cowhand_disk *old = disk;
    EQUAL(cowhand_destroy(&disk), 0);
    no_disk(old);
    no_queue(queue);
    /* The places are used again, the handles are not. */
    cowhand_disk *next = connected(argv[1]);
    CHECK(next != old && started(next) != queue);
    no_disk(old);
    no_queue(queue);
    EQUAL(cowhand_destroy(&next), 0);
    puts("wrong: ok");
}
