/* A disk whose blocks are filled with one byte each. */
#include "check.h"

#define SIZE (16u << 20)
#define BLOCK 65536

static inline void fill(cowhand_disk *disk, uint64_t offset, int byte) {
    static char buf[BLOCK];
    memset(buf, byte, BLOCK);
    EQUAL(cowhand_write_blocking(disk, offset, buf, BLOCK, 0), 0);
}

static inline int byte_at(cowhand_disk *disk, uint64_t offset) {
    char byte = 0;
    EQUAL(cowhand_read_blocking(disk, offset, &byte, 1), 0);
    return byte;
}
