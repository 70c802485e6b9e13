/* A load client over HTTP/1.1 with keep-alive: open or closed loop, every sample kept.
 *
 * load HOST PORT REQUEST-FILE CONNECTIONS SECONDS RATE SEED
 *
 * RATE above 0: Poisson arrivals of so many requests a second; each goes out when it is due, or as soon as a connection
 * is free. RATE 0: every connection sends its next request as soon as it has an answer. Stdout: doubles of this
 * machine, first how many seconds requests were sent, then four for each request: when it was due, sent and answered (s
 * from the beginning, NaN for no answer) and the status of the answer (0 for none). Answers have a
 * Content-Length, or chunks of which none but the last ends as the last does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, EVENTS = 256 };
static const double PATIENCE_S = 1.0;

struct sample { double due, sent, answered, status; };
struct connection { int fd; long row; size_t have; char *answer; };

static struct sample *samples;
static long count, room;
static struct connection *connections;
static int *idle, idle_count, poll_fd, timer_fd;
static struct sockaddr_in server;
static char *request;
static size_t request_bytes;
static double began;

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9 - began;
}

static void open_connection(int number) {
    struct connection *c = &connections[number];
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&server, sizeof server)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (unsigned)number};
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl");
    c->row = -1;
    c->have = 0;
}

static long add_sample(double due, double sent) {
    if (count == room) {
        room = room ? 2 * room : 1 << 16;
        samples = realloc(samples, (size_t)room * sizeof *samples);
        if (!samples) fail("realloc");
    }
    samples[count] = (struct sample){due, sent, NAN, 0.0};
    return count++;
}

/* False when the server has closed the connection meanwhile; then nothing was sent. */
static int send_on(int number, double due) {
    struct connection *c = &connections[number];
    c->row = add_sample(due, now());
    for (size_t done = 0; done < request_bytes;) {
        ssize_t sent = send(c->fd, request + done, request_bytes - done, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) return 0;
        if (sent > 0) done += (size_t)sent;
    }
    return 1;
}

/* Bytes of the answer that begins the buffer, 0 while that is not known. */
static size_t answer_bytes(const struct connection *c) {
    char *end = memmem(c->answer, c->have, "\r\n\r\n", 4);
    if (!end) return 0;
    for (char *line = memmem(c->answer, c->have, "\r\n", 2); line && line < end; line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, "content-length:", 15)) return (size_t)(end + 4 - c->answer) + strtoul(line + 17, 0, 10);
    if (strcasestr(c->answer, "\r\ntransfer-encoding: chunked\r\n"))
        return !memcmp(c->answer + c->have - 5, "0\r\n\r\n", 5) ? c->have : 0;
    fprintf(stderr, "load: an answer without Content-Length: %.200s\n", c->answer);
    exit(1);
}

/* Whether the connection has an answer now, or none is to come. */
static int receive_on(int number) {
    struct connection *c = &connections[number];
    ssize_t got = recv(c->fd, c->answer + c->have, BUFFER - 1 - c->have, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (got <= 0) {
        int waited = c->row >= 0;
        close(c->fd);
        open_connection(number);
        return waited;
    }
    c->have += (size_t)got;
    c->answer[c->have] = 0;
    size_t bytes = answer_bytes(c);
    if (!bytes || c->have < bytes || c->row < 0) {
        if (c->have == BUFFER - 1) fail("an answer of more than a MiB");
        return 0;
    }
    samples[c->row].answered = now();
    samples[c->row].status = atof(c->answer + 9);
    c->row = -1;
    c->have = 0;
    return 1;
}

static void wake_at(double due) {
    double at = due + began, left = due - now();
    if (left <= 0) at = began + now() + 1e-9;
    struct itimerspec when = {.it_value = {(time_t)at, (long)((at - floor(at)) * 1e9)}};
    if (timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL)) fail("timerfd_settime");
}

static void read_request(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(path);
    request_bytes = (size_t)ftell(file);
    rewind(file);
    request = malloc(request_bytes);
    if (!request || fread(request, 1, request_bytes, file) != request_bytes) fail(path);
    fclose(file);
}

int main(int argc, char **argv) {
    if (argc != 8) return fprintf(stderr, "load: HOST PORT REQUEST-FILE CONNECTIONS SECONDS RATE SEED\n"), 2;
    int number = atoi(argv[4]);
    double seconds = atof(argv[5]), rate = atof(argv[6]);
    srand48(atol(argv[7]));
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &server.sin_addr) != 1) return fprintf(stderr, "load: no IPv4 address\n"), 2;
    read_request(argv[3]);
    prctl(PR_SET_TIMERSLACK, 1UL);
    poll_fd = epoll_create1(0);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event timer = {.events = EPOLLIN, .data.u32 = (unsigned)number}, events[EVENTS];
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, timer_fd, &timer)) fail("epoll_ctl");
    connections = calloc((size_t)number, sizeof *connections);
    idle = calloc((size_t)number, sizeof *idle);
    for (int i = 0; i < number; i++) {
        connections[i].answer = malloc(BUFFER);
        open_connection(i);
        idle[idle_count++] = i;
    }
    int closed = rate <= 0, waiting = 0;
    if (!closed) usleep(300000); /* the server accepts all connections first, as a service's have long been */
    began = now();
    double due = closed ? 0.0 : -log(1.0 - drand48()) / rate;
    for (;;) {
        double at = now();
        while (idle_count && (closed ? at < seconds : due <= at && due < seconds)) {
            waiting++;
            if (!send_on(idle[--idle_count], closed ? at : due)) {
                shutdown(connections[idle[idle_count]].fd, SHUT_RDWR); /* epoll reports it: it is opened again */
            }
            if (!closed) due -= log(1.0 - drand48()) / rate;
            at = now();
        }
        int sends = closed ? at < seconds : due < seconds && at < seconds + PATIENCE_S;
        if (!sends && (!waiting || at > seconds + PATIENCE_S)) break;
        if (!sends) wake_at(at + 0.05);
        else if (closed) wake_at(seconds);
        else wake_at(idle_count ? due : at + 0.05);
        int ready = epoll_wait(poll_fd, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            unsigned which = events[i].data.u32;
            char spent[8];
            if (which == (unsigned)number) {
                if (read(timer_fd, spent, sizeof spent) < 0 && errno != EAGAIN) fail("timerfd");
            } else if (receive_on((int)which)) {
                idle[idle_count++] = (int)which;
                waiting--;
            }
        }
    }
    for (; !closed && due < seconds; due -= log(1.0 - drand48()) / rate) add_sample(due, NAN);
    fwrite(&seconds, sizeof seconds, 1, stdout);
    fwrite(samples, sizeof *samples, (size_t)count, stdout);
    return 0;
}
