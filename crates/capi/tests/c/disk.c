/* disk PATH: a disk as a whole: properties, blocking requests, extents, limits, figures, size, snapshots. */
#include "check.h"

#define SIZE (64u << 20)
#define BLOCK 65536

static char *text_of(int (*get)(cowhand_disk *, char **), cowhand_disk *disk) {
    char *text = NULL;
    EQUAL(get(disk, &text), 0);
    return text;
}

static void expect(char *text, const char *part) {
    if (!strstr(text, part)) {
        fprintf(stderr, "%s is not in %s\n", part, text);
        exit(1);
    }
    cowhand_free(text);
}

static uint64_t number(cowhand_disk *disk, const char *name) {
    uint64_t value = 0;
    EQUAL(cowhand_get_u64(disk, name, &value), 0);
    return value;
}

static bool is(cowhand_disk *disk, const char *name) {
    bool value = false;
    EQUAL(cowhand_get_bool(disk, name, &value), 0);
    return value;
}

static void properties(const char *path) {
    cowhand_disk *disk = NULL;
    uint64_t value;
    bool yes;
    char *text = NULL;
    EQUAL(cowhand_create("qcow3", &disk), -ENOENT);
    CHECK(strstr(cowhand_error_message(), "qcow2"));
    EQUAL(cowhand_create("auto", &disk), 0);
    EQUAL(cowhand_connect(disk), -EINVAL); /* no path */
    EQUAL(cowhand_set_str(disk, "path", "/nowhere/disk.qcow2"), 0);
    EQUAL(cowhand_connect(disk), -ENOENT);
    /* The name of an export is no path, and is one behind "./". */
    EQUAL(cowhand_set_str(disk, "path", "nbd://127.0.0.1:1/x"), 0);
    EQUAL(cowhand_connect(disk), -EIO);
    EQUAL(cowhand_set_str(disk, "path", "./nbd://127.0.0.1:1/x"), 0);
    EQUAL(cowhand_connect(disk), -ENOENT);
    EQUAL(cowhand_set_str(disk, "path", path), 0);
    EQUAL(cowhand_set_str(disk, "cahe", "none"), 0);
    EQUAL(cowhand_connect(disk), -EINVAL);
    CHECK(strstr(cowhand_error_message(), "cahe"));
    EQUAL(cowhand_destroy(&disk), 0);

    EQUAL(cowhand_create("auto", &disk), 0);
    EQUAL(cowhand_set_str(disk, "path", path), 0);
    EQUAL(cowhand_set_bool(disk, "read-only", false), 0);
    EQUAL(cowhand_set_bool(disk, "read-only", true), 0); /* the last one counts */
    CHECK(!is(disk, "connected"));
    EQUAL(cowhand_get_u64(disk, "capacity", &value), -ENOTCONN);
    EQUAL(cowhand_get_bool(disk, "read-only", &yes), -ENOTCONN);
    EQUAL(cowhand_start(disk), -ENOTCONN);
    EQUAL(cowhand_set_str(disk, "driver", "raw"), -EACCES);
    EQUAL(cowhand_get_str(disk, "driver", &text), 0);
    expect(text, "auto");
    EQUAL(cowhand_connect(disk), 0);
    EQUAL(cowhand_connect(disk), -EISCONN);
    CHECK(is(disk, "connected") && is(disk, "read-only") && !is(disk, "started"));
    EQUAL(cowhand_get_str(disk, "driver", &text), 0);
    expect(text, "qcow2");
    EQUAL(cowhand_get_str(disk, "chain", &text), 0);
    expect(text, path);
    EQUAL(number(disk, "capacity"), SIZE);
    EQUAL(number(disk, "discard-alignment"), 65536);
    CHECK(number(disk, "request-alignment") >= 1 && number(disk, "optimal-io-alignment") >= 1);
    EQUAL(cowhand_set_bool(disk, "discard", true), -EBUSY);
    EQUAL(cowhand_get_u64(disk, "capacty", &value), -ENOENT);
    CHECK(strstr(cowhand_error_message(), "capacity"));
    EQUAL(cowhand_set_u64(disk, "num-queues", 0), -EINVAL);
    EQUAL(cowhand_set_u64(disk, "queue-size", 32769), -EINVAL);
    EQUAL(cowhand_set_u64(disk, "num-queues", 3), 0);
    cowhand_queue *queue = NULL;
    EQUAL(cowhand_get_queue(disk, 0, &queue), -ENOTCONN);
    EQUAL(cowhand_start(disk), 0);
    EQUAL(cowhand_start(disk), -EALREADY);
    EQUAL(cowhand_set_u64(disk, "num-queues", 4), -EBUSY);
    EQUAL(number(disk, "num-queues"), 3);
    EQUAL(cowhand_get_queue(disk, 2, &queue), 0);
    EQUAL(cowhand_get_queue(disk, 3, &queue), -ENOENT);
    char byte = 1;
    EQUAL(cowhand_write_blocking(disk, 0, &byte, 1, 0), -EROFS);
    EQUAL(cowhand_destroy(&disk), 0);
}

static void blocking(cowhand_disk *disk) {
    static char buf[4 * BLOCK], back[4 * BLOCK];
    memset(buf, 3, sizeof buf);
    EQUAL(cowhand_write_blocking(disk, 0, buf, sizeof buf, COWHAND_REQ_FUA), 0);
    EQUAL(cowhand_read_blocking(disk, 0, back, sizeof back), 0);
    EQUAL(memcmp(buf, back, sizeof buf), 0);
    EQUAL(cowhand_read_blocking(disk, 100, back, 100), 0);
    EQUAL(memcmp(buf, back, 100), 0);
    EQUAL(cowhand_read_blocking(disk, SIZE - 1, back, 2), -EINVAL);
    EQUAL(cowhand_read_blocking(disk, 0, back, 0), 0);
    EQUAL(cowhand_write_zeroes_blocking(disk, BLOCK, BLOCK, 0), 0);
    EQUAL(cowhand_discard_blocking(disk, 2 * BLOCK, BLOCK), 0);
    EQUAL(cowhand_flush_blocking(disk), 0);
}

/* Data, zeroes, zeroes, data, and nothing up to the end; what a short list leaves comes with the next call. */
static void extents(cowhand_disk *disk) {
    cowhand_extent extent;
    uint64_t at = 0, data = 0, calls = 0;
    while (at < SIZE) {
        EQUAL(cowhand_extents(disk, at, SIZE - at, &extent, 1), 1);
        EQUAL(extent.offset, at);
        CHECK(extent.len > 0);
        if (extent.flags & COWHAND_EXTENT_DATA) {
            CHECK(extent.flags & COWHAND_EXTENT_PRESENT && extent.flags & COWHAND_EXTENT_FILE_OFFSET);
            data += extent.len;
        } else {
            CHECK(extent.flags & COWHAND_EXTENT_ZERO);
        }
        at += extent.len;
        calls++;
    }
    EQUAL(at, SIZE);
    EQUAL(data, 2 * BLOCK);
    CHECK(calls >= 4);
    cowhand_extent all[64];
    EQUAL(cowhand_extents(disk, 0, SIZE, all, 64), calls);
    EQUAL(cowhand_extents(disk, 0, SIZE, NULL, 1), -EFAULT);
    EQUAL(cowhand_extents(disk, SIZE + 1, 1, all, 64), -EINVAL);
}

static void steering(cowhand_disk *disk) {
    const cowhand_limit limits[] = {{"iops-total", 5000}, {"bps-read", 1 << 30}};
    EQUAL(cowhand_set_limits(disk, limits, 2), 0);
    expect(text_of(cowhand_get_limits, disk), "{\"iops-total\":5000,\"bps-read\":1073741824}");
    const cowhand_limit wrong[] = {{"iops-totl", 5}}, without_name[] = {{NULL, 5}};
    EQUAL(cowhand_set_limits(disk, wrong, 1), -EINVAL);
    CHECK(strstr(cowhand_error_message(), "iops-total"));
    EQUAL(cowhand_set_limits(disk, without_name, 1), -EFAULT);
    EQUAL(cowhand_set_limits(disk, NULL, 0), 0);
    expect(text_of(cowhand_get_limits, disk), "{}");
    expect(text_of(cowhand_statistics, disk), "\"write\":{\"requests\":1,\"failed\":0,\"bytes\":262144,");

    EQUAL(cowhand_resize(disk, 2 * SIZE, 0), 0);
    EQUAL(number(disk, "capacity"), 2 * SIZE);
    EQUAL(cowhand_resize(disk, SIZE, 0), -EINVAL);
    EQUAL(cowhand_resize(disk, SIZE, 2), -EINVAL);
    EQUAL(cowhand_resize(disk, SIZE, COWHAND_RESIZE_SHRINK), 0);
    EQUAL(number(disk, "capacity"), SIZE);
}

static void snapshots(cowhand_disk *disk) {
    char byte = 42, back = 0;
    EQUAL(cowhand_create_snapshot(disk, "before"), 0);
    expect(text_of(cowhand_snapshots, disk), "\"name\":\"before\"");
    EQUAL(cowhand_write_blocking(disk, 5, &byte, 1, 0), 0);
    EQUAL(cowhand_apply_snapshot(disk, "before"), 0);
    EQUAL(cowhand_read_blocking(disk, 5, &back, 1), 0);
    EQUAL(back, 3);
    EQUAL(cowhand_delete_snapshot(disk, "before"), 0);
    EQUAL(cowhand_delete_snapshot(disk, "before"), -EINVAL);
    CHECK(strstr(cowhand_error_message(), "before"));
    EQUAL(cowhand_create_snapshot(disk, "\xff"), -EINVAL);
    expect(text_of(cowhand_snapshots, disk), "[]");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(strcmp(cowhand_version(), "0.1.0") == 0);
    new_image(argv[1], SIZE);
    EQUAL(cowhand_create_image(argv[1], "qcow2", SIZE, NULL, NULL), -EEXIST);
    EQUAL(cowhand_create_image("x", "vmdk", SIZE, NULL, NULL), -EINVAL);
    EQUAL(cowhand_create_image("x", "qcow2", SIZE, "base", NULL), -EINVAL);
    properties(argv[1]);
    cowhand_disk *disk = connected(argv[1]);
    blocking(disk);
    extents(disk);
    steering(disk);
    snapshots(disk);
    EQUAL(cowhand_destroy(&disk), 0);
    puts("disk: ok");
}
