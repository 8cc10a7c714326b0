/* threads PATH: queues and one disk used by many threads, a queue by two, and an end with requests in flight. */
#include "check.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#define THREADS 4
#define PART (1u << 20)
#define BLOCK 4096
#define DEPTH 16

struct part {
    cowhand_disk *disk;
    unsigned number;
};

/* Writes a part of the disk through a queue of its own, woken by epoll, and reads it back with blocking calls. */
static void *work(void *argument) {
    struct part *part = argument;
    cowhand_queue *queue = NULL;
    EQUAL(cowhand_get_queue(part->disk, part->number, &queue), 0);
    int waiting = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    EQUAL(epoll_ctl(waiting, EPOLL_CTL_ADD, cowhand_completion_fd(queue), &event), 0);
    char *buf = malloc(BLOCK);
    memset(buf, (int)part->number + 1, BLOCK);
    uint64_t begin = (uint64_t)part->number * PART, next = 0, ended = 0, blocks = PART / BLOCK;
    while (ended < blocks) {
        while (next < blocks && next - ended < DEPTH) {
            EQUAL(cowhand_write(queue, begin + next * BLOCK, buf, BLOCK, next, 0), 0);
            next++;
        }
        int woken;
        while ((woken = epoll_wait(waiting, &event, 1, -1)) < 0 && errno == EINTR) {}
        EQUAL(woken, 1);
        cowhand_completion done[DEPTH];
        int count = cowhand_do_io(queue, done, 0, DEPTH, 0);
        CHECK(count > 0);
        for (int i = 0; i < count; i++)
            EQUAL(done[i].ret, 0);
        ended += (uint64_t)count;
    }
    char *back = malloc(BLOCK);
    for (uint64_t block = 0; block < blocks; block++) {
        EQUAL(cowhand_read_blocking(part->disk, begin + block * BLOCK, back, BLOCK), 0);
        EQUAL(memcmp(buf, back, BLOCK), 0);
    }
    /* Each thread has words of its own. */
    char name[16];
    snprintf(name, sizeof name, "none-%u", part->number);
    uint64_t value;
    EQUAL(cowhand_get_u64(part->disk, name, &value), -ENOENT);
    CHECK(strstr(cowhand_error_message(), name));
    close(waiting);
    free(buf);
    free(back);
    return NULL;
}

static void *wait_for_one(void *queue) {
    cowhand_completion completion;
    int count = cowhand_do_io(queue, &completion, 1, 1, -1);
    /* The other thread may be in the queue, or have ended the disk, before this one comes. */
    CHECK(count == 1 || count == -EBUSY || count == -EBADF);
    return NULL;
}

/* While one thread waits in a queue, another is refused; then the disk ends with requests in flight. */
static void two_in_a_queue_and_the_end(const char *path) {
    cowhand_disk *disk = connected(path);
    cowhand_queue *queue = started(disk);
    static char buf[64 * 512];
    const cowhand_limit slow[] = {{"iops-total", 1}};
    EQUAL(cowhand_set_limits(disk, slow, 1), 0);
    for (uint64_t i = 0; i < 64; i++)
        EQUAL(cowhand_write(queue, i * 512, buf + i * 512, 512, i, 0), 0);
    /* Those that pass the limit at once. */
    cowhand_completion done[64];
    CHECK(cowhand_do_io(queue, done, 0, 64, 0) < 64);
    pthread_t waiter;
    EQUAL(pthread_create(&waiter, NULL, wait_for_one, queue), 0);
    cowhand_completion completion;
    int found;
    /* The waiter may not have come yet, or a completion have ended its waiting already. */
    while ((found = cowhand_do_io(queue, &completion, 0, 1, 0)) == 0) {}
    CHECK(found == -EBUSY || found == 1);
    cowhand_disk *ended = disk;
    EQUAL(cowhand_destroy(&ended), 0);
    EQUAL(pthread_join(waiter, NULL), 0);
    EQUAL(cowhand_flush(queue, 0, 0), -EBADF);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    new_image(argv[1], THREADS * PART);
    cowhand_disk *disk = connected(argv[1]);
    EQUAL(cowhand_set_u64(disk, "num-queues", THREADS), 0);
    EQUAL(cowhand_start(disk), 0);
    pthread_t threads[THREADS];
    struct part parts[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        parts[i] = (struct part){disk, i};
        EQUAL(pthread_create(&threads[i], NULL, work, &parts[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        EQUAL(pthread_join(threads[i], NULL), 0);
    EQUAL(cowhand_destroy(&disk), 0);
    two_in_a_queue_and_the_end(argv[1]);
    puts("threads: ok");
}
