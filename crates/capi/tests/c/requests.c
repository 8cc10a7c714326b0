/* requests PATH: every kind of request through a queue, its flags, its end, and what is refused. */
#include "check.h"

#include <poll.h>
#include <stdlib.h>

#define SIZE (64u << 20)
#define BLOCK 65536

static bool is_readable(int fd) {
    struct pollfd fds = {.fd = fd, .events = POLLIN};
    return poll(&fds, 1, 0) == 1;
}

/* Waits for one completion and expects its number and result. */
static void one(cowhand_queue *queue, uint64_t user_data, int ret) {
    cowhand_completion completion;
    EQUAL(cowhand_do_io(queue, &completion, 1, 1, -1), 1);
    EQUAL(completion.user_data, user_data);
    EQUAL(completion.ret, ret);
    CHECK((completion.message != NULL) == (ret != 0));
}

static void reads_and_writes(cowhand_queue *queue, char *buf, char *back) {
    memset(buf, 7, BLOCK);
    EQUAL(cowhand_write(queue, 512, buf, BLOCK, 1, COWHAND_REQ_FUA), 0);
    one(queue, 1, 0);
    EQUAL(cowhand_read(queue, 512, back, BLOCK, 2, 0), 0);
    one(queue, 2, 0);
    EQUAL(memcmp(buf, back, BLOCK), 0);

    struct iovec out[] = {{buf, 1000}, {NULL, 0}, {buf + 1000, 24}};
    memset(buf, 9, 1024);
    EQUAL(cowhand_writev(queue, 1 << 20, out, 3, 3, 0), 0);
    one(queue, 3, 0);
    struct iovec in[] = {{back + 4096, 24}, {back, 1000}};
    EQUAL(cowhand_readv(queue, 1 << 20, in, 2, 4, 0), 0);
    one(queue, 4, 0);
    EQUAL(memcmp(back, buf, 1000), 0);
    EQUAL(memcmp(back + 4096, buf, 24), 0);
    EQUAL(cowhand_flush(queue, 5, 0), 0);
    one(queue, 5, 0);
}

static void zeroes_and_discards(cowhand_queue *queue, char *buf, char *back) {
    memset(buf, 5, BLOCK);
    const uint32_t flags[] = {0, COWHAND_REQ_NO_UNMAP, COWHAND_REQ_FUA | COWHAND_REQ_NO_FALLBACK};
    for (unsigned i = 0; i < 3; i++) {
        uint64_t offset = (2 + i) << 20;
        EQUAL(cowhand_write(queue, offset, buf, BLOCK, 10 + i, 0), 0);
        one(queue, 10 + i, 0);
        EQUAL(cowhand_write_zeroes(queue, offset, BLOCK, 20 + i, flags[i]), 0);
        one(queue, 20 + i, 0);
        EQUAL(cowhand_read(queue, offset, back, BLOCK, 30 + i, 0), 0);
        one(queue, 30 + i, 0);
        CHECK(back[0] == 0 && memcmp(back, back + 1, BLOCK - 1) == 0);
    }
    EQUAL(cowhand_write(queue, 8 << 20, buf, BLOCK, 40, 0), 0);
    one(queue, 40, 0);
    EQUAL(cowhand_discard(queue, 8 << 20, BLOCK, 41, 0), 0);
    one(queue, 41, 0);
}

static void failures(cowhand_queue *queue, char *buf) {
    EQUAL(cowhand_read(queue, SIZE, buf, 512, 50, 0), 0);
    cowhand_completion completion;
    EQUAL(cowhand_do_io(queue, &completion, 1, 1, -1), 1);
    EQUAL(completion.ret, -EINVAL);
    CHECK(strstr(completion.message, "past the end of the disk"));

    EQUAL(cowhand_read(queue, 0, buf, 512, 51, COWHAND_REQ_FUA), -EINVAL);
    CHECK(strstr(cowhand_error_message(), "allowed: none"));
    EQUAL(cowhand_write(queue, 0, buf, 512, 51, COWHAND_REQ_NO_UNMAP), -EINVAL);
    CHECK(strstr(cowhand_error_message(), "allowed: COWHAND_REQ_FUA"));
    EQUAL(cowhand_write_zeroes(queue, 0, 512, 51, 8), -EINVAL);
    EQUAL(cowhand_flush(queue, 51, 1), -EINVAL);
    EQUAL(cowhand_discard(queue, 0, 512, 51, 1), -EINVAL);
    EQUAL(cowhand_read(queue, 0, NULL, 512, 51, 0), -EFAULT);
    EQUAL(cowhand_read(queue, 0, buf, SIZE_MAX, 51, 0), -EINVAL);
    struct iovec iov = {buf, 512};
    EQUAL(cowhand_readv(queue, 0, &iov, -1, 51, 0), -EINVAL);
    EQUAL(cowhand_readv(queue, 0, &iov, 1025, 51, 0), -EINVAL);
    EQUAL(cowhand_readv(queue, 0, NULL, 1, 51, 0), -EFAULT);
    EQUAL(cowhand_do_io(queue, &completion, 0, -1, 0), -EINVAL);
    EQUAL(cowhand_do_io(queue, &completion, 2, 1, 0), -EINVAL);
    EQUAL(cowhand_do_io(queue, NULL, 0, 1, 0), -EFAULT);
    EQUAL(cowhand_do_io(queue, NULL, 0, 0, 0), 0);
}

/* The event is readable exactly while there are completions, also of those that a call has left. */
static void events(cowhand_queue *queue, char *buf) {
    int fd = cowhand_completion_fd(queue);
    CHECK(fd >= 0 && !is_readable(fd));
    for (uint64_t i = 0; i < 4; i++)
        EQUAL(cowhand_read(queue, i * BLOCK, buf + i * 512, 512, i, 0), 0);
    EQUAL(cowhand_read(queue, 0, buf, 512, 4, 0), -EAGAIN);
    unsigned seen = 0;
    for (unsigned taken = 0; taken < 4; taken++) {
        struct pollfd fds = {.fd = fd, .events = POLLIN};
        EQUAL(poll(&fds, 1, -1), 1);
        cowhand_completion completion;
        EQUAL(cowhand_do_io(queue, &completion, 0, 1, 0), 1);
        seen |= 1u << completion.user_data;
    }
    EQUAL(seen, 15);
    CHECK(!is_readable(fd));
    cowhand_completion completion;
    EQUAL(cowhand_do_io(queue, &completion, 1, 1, -1), 0); /* none is in flight */
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    new_image(argv[1], SIZE);
    char *buf = malloc(BLOCK), *back = malloc(BLOCK);
    cowhand_disk *disk = connected(argv[1]);
    EQUAL(cowhand_set_u64(disk, "queue-size", 4), 0);
    cowhand_queue *queue = started(disk);
    reads_and_writes(queue, buf, back);
    zeroes_and_discards(queue, buf, back);
    failures(queue, buf);
    events(queue, buf);
    EQUAL(cowhand_destroy(&disk), 0);
    CHECK(disk == NULL);
    EQUAL(cowhand_destroy(&disk), 0);
    free(buf);
    free(back);
    puts("requests: ok");
}
