/* secrets PATH: an image that QEMU has encrypted is opened with the program's secret. */
#include "blocks.h"

static int opened(const char *path, const char *secret, cowhand_disk **disk) {
    EQUAL(cowhand_create("luks", disk), 0);
    EQUAL(cowhand_set_str(*disk, "path", path), 0);
    EQUAL(cowhand_set_str(*disk, "key-secret", secret), 0);
    return cowhand_connect(*disk);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char command[8192];
    const char *object = "--object secret,id=s,data=hush", *options = "-o key-secret=s,iter-time=10";
    snprintf(command, sizeof command, "qemu-img create -q -f luks %s %s '%s' %u", object, options, argv[1], SIZE);
    /* It fails now and then: the kernel's count of CPU time went back. */
    int tries = 1;
    while (system(command) != 0)
        CHECK(tries++ < 100);
    cowhand_disk *disk = NULL;
    CHECK(opened(argv[1], "key", &disk) < 0);
    CHECK(strstr(cowhand_error_message(), "key"));
    EQUAL(cowhand_destroy(&disk), 0);
    /* A key may have any bytes. */
    const char wrong[] = {'h', 0, 'u', 's', 'h'};
    EQUAL(cowhand_add_secret("wrong", wrong, sizeof wrong), 0);
    EQUAL(cowhand_add_secret("key", "hush", 4), 0);
    EQUAL(cowhand_add_secret("key", "hush", 4), -EEXIST);
    EQUAL(cowhand_add_secret("none", NULL, 4), -EFAULT);
    EQUAL(cowhand_add_secret(NULL, wrong, 4), -EFAULT);
    CHECK(opened(argv[1], "wrong", &disk) < 0);
    EQUAL(cowhand_destroy(&disk), 0);
    EQUAL(opened(argv[1], "key", &disk), 0);
    fill(disk, 0, 7);
    EQUAL(cowhand_remove_secret("key"), 0);
    EQUAL(cowhand_remove_secret("key"), -ENOENT);
    EQUAL(byte_at(disk, 0), 7);
    EQUAL(cowhand_destroy(&disk), 0);
    puts("secrets: ok");
}
