/* Slows the clocks of a process down: SLOW_CLOCK is the factor, and the nanoseconds at which the wall
   clock and the monotonic clock were right. A process that runs fifty times slower, because its
   instructions are counted, then gets as much done in a second of its own as usual.

   Covers the calls by which redis-server and the runtime of Rust ask for the time and wait. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#define SECOND 1000000000LL

static int64_t factor, wall_origin, monotonic_origin;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_epoll_wait)(int, struct epoll_event *, int, int);
static long (*real_syscall)(long, ...);
static int (*real_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

static void find(void) {
    const char *setting = getenv("SLOW_CLOCK");
    long long settings[3] = {1, 0, 0};
    if (setting) sscanf(setting, "%lld %lld %lld", settings, settings + 1, settings + 2);
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_epoll_wait = dlsym(RTLD_NEXT, "epoll_wait");
    real_syscall = dlsym(RTLD_NEXT, "syscall");
    /* On x86 there is an older function of this name, for other condition variables. */
    real_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real_timedwait) real_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    wall_origin = settings[1];
    monotonic_origin = settings[2];
    factor = settings[0];
}

__attribute__((constructor)) static void start(void) {
    if (!factor) find();
}

/* The origin of a clock; 0 for clocks that are left alone, such as those of CPU time. */
static int64_t origin(clockid_t clock) {
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return wall_origin;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
        return monotonic_origin;
    default:
        return 0;
    }
}

static int64_t nanoseconds(const struct timespec *at) {
    return at->tv_sec * SECOND + at->tv_nsec;
}

static struct timespec timespec_of(int64_t ns) {
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

/* The real time at which a slow clock shows this time. */
static struct timespec real_time(const struct timespec *slow, int64_t right_at) {
    return timespec_of(right_at + (nanoseconds(slow) - right_at) * factor);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!factor) find();
    int failed = real_clock_gettime(clock, at);
    int64_t right_at = origin(clock);
    if (!failed && right_at) {
        *at = timespec_of(right_at + (nanoseconds(at) - right_at) / factor);
    }
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int milliseconds) {
    if (!factor) find();
    int64_t wait = milliseconds > 0 ? milliseconds * factor : milliseconds;
    return real_epoll_wait(epoll, events, most, wait < INT32_MAX ? (int)wait : INT32_MAX);
}

/* The allocator of redis-server waits so, until a time by the wall clock. */
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    if (!factor) find();
    struct timespec real_until = real_time(until, wall_origin);
    return real_timedwait(condition, mutex, &real_until);
}

/* Rust waits with FUTEX_WAIT_BITSET, until a time by the monotonic clock. */
long syscall(long number, ...) {
    if (!factor) find();
    va_list rest;
    va_start(rest, number);
    long a[6];
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    const struct timespec *until = (const struct timespec *)a[3];
    struct timespec real_until;
    if (number == SYS_futex && until && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET) {
        real_until = real_time(until, monotonic_origin);
        a[3] = (long)&real_until;
    }
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
