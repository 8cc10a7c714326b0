/* What the test programs share: expectations that name their place, and an open disk. */
#include <cowhand.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "%s:%d: not so: %s (last failure: %s)\n", __FILE__, __LINE__, #condition,      \
                    cowhand_error_message());                                                              \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

#define EQUAL(found, expected)                                                                             \
    do {                                                                                                   \
        long long found_ = (long long)(found), expected_ = (long long)(expected);                          \
        if (found_ != expected_) {                                                                         \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld (last failure: %s)\n", __FILE__, __LINE__, #found, \
                    found_, expected_, cowhand_error_message());                                           \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

/* A disk on the image at path, connected. */
static inline cowhand_disk *connected(const char *path) {
    cowhand_disk *disk = NULL;
    EQUAL(cowhand_create("qcow2", &disk), 0);
    EQUAL(cowhand_set_str(disk, "path", path), 0);
    EQUAL(cowhand_set_bool(disk, "discard", true), 0);
    EQUAL(cowhand_connect(disk), 0);
    return disk;
}

/* Its only queue. */
static inline cowhand_queue *started(cowhand_disk *disk) {
    cowhand_queue *queue = NULL;
    EQUAL(cowhand_start(disk), 0);
    EQUAL(cowhand_get_queue(disk, 0, &queue), 0);
    return queue;
}

/* A new image of size bytes at path. */
static inline void new_image(const char *path, uint64_t size) {
    EQUAL(cowhand_create_image(path, "qcow2", size, NULL, NULL), 0);
}
