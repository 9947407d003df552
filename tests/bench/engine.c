/* A mock engine for benchmarks: one epoll thread that answers OpenAI's chat route, so cheap that what is measured is
 * the gateway in front of it. It is a mock and says so in `server:`.
 *
 *     engine PORT [PORT...]
 *
 * Each port is one "engine". Of a request's body it reads "stream":true, "max_tokens" (content chunks) and "seed"
 * (microseconds between chunks). All streams tick together, as the sequences of one batch do; each chunk is one
 * write. The model that it answers with is "upstream", another name than the gateway's public one, so that the
 * rewrite is paid for.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FDS = 8192, BUFFER = 1 << 20, TEXTS = 64 };

struct peer {
    size_t length;
    int streaming;
    long left;
    int64_t next, interval;
    char buffer[BUFFER];
};

#define FRAME(members) \
    "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\"," \
    "\"created\":1764529435,\"model\":\"upstream\"," members "}\n\n"

static struct peer *peers[MAX_FDS];
static int streams[MAX_FDS], stream_count, timer;
static int64_t armed;
static char texts[TEXTS][512], first[512], last[512], usage[512], whole[4096];
static int text_length, first_length, last_length, usage_length, whole_length;

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static int chunked(char *out, const char *payload)
{
    return sprintf(out, "%zx\r\n%s\r\n", strlen(payload), payload);
}

static void prepare(void)
{
    char payload[512], text[760];
    for (int i = 0; i < TEXTS; i++) {
        sprintf(payload,
                FRAME("\"choices\":[{\"index\":0,\"delta\":{\"content\":\" tok%02d\"},\"logprobs\":null,"
                      "\"finish_reason\":null}]"),
                i);
        text_length = chunked(texts[i], payload);
    }
    first_length = chunked(first, FRAME("\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                                        "\"logprobs\":null,\"finish_reason\":null}]"));
    last_length = chunked(last, FRAME("\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
                                      "\"finish_reason\":\"length\",\"stop_reason\":null}]"));
    usage_length = chunked(usage, FRAME("\"choices\":[],\"usage\":{\"prompt_tokens\":300,\"total_tokens\":500,"
                                        "\"completion_tokens\":200}"));
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    char body[2048];
    int length = sprintf(body,
                         "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\","
                         "\"created\":1764529435,\"model\":\"upstream\",\"choices\":[{\"index\":0,\"message\":"
                         "{\"role\":\"assistant\",\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
                         "\"usage\":{\"prompt_tokens\":300,\"total_tokens\":416,\"completion_tokens\":116}}",
                         text);
    whole_length = sprintf(whole,
                           "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: application/json\r\n"
                           "content-length: %d\r\n\r\n%s",
                           length, body);
}

static void drop(int fd)
{
    for (int i = 0; i < stream_count; i++)
        if (streams[i] == fd) {
            streams[i] = streams[--stream_count];
            break;
        }
    close(fd);
    free(peers[fd]);
    peers[fd] = NULL;
}

static int put(int fd, const char *bytes, int length)
{
    while (length > 0) {
        ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EINTR || errno == EAGAIN)) {
            usleep(100);
            continue;
        }
        if (sent < 0)
            return -1;
        bytes += sent;
        length -= sent;
    }
    return 0;
}

static long number(const char *body, const char *name, long otherwise)
{
    const char *at = strstr(body, name);
    if (!at)
        return otherwise;
    at += strlen(name);
    while (*at == '"' || *at == ':' || *at == ' ')
        at++;
    return strtol(at, NULL, 10);
}

static void arm(int64_t when)
{
    if (armed && armed <= when)
        return;
    armed = when;
    struct itimerspec spec = {{0, 0}, {when / 1000000, when % 1000000 * 1000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &spec, NULL);
}

static int answer(int fd, struct peer *peer, const char *head, const char *body)
{
    static const char health[] = "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-length: 0\r\n\r\n";
    static const char stream[] = "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                                 "transfer-encoding: chunked\r\n\r\n";
    if (strncmp(head, "POST", 4))
        return put(fd, health, sizeof health - 1);
    if (!strstr(body, "\"stream\":true"))
        return put(fd, whole, whole_length);
    if (put(fd, stream, sizeof stream - 1) || put(fd, first, first_length))
        return -1;
    peer->streaming = 1;
    peer->left = number(body, "\"max_tokens\"", 16);
    peer->interval = number(body, "\"seed\"", 20000);
    peer->next = (now_us() / peer->interval + 1) * peer->interval;
    streams[stream_count++] = fd;
    arm(peer->next);
    return 0;
}

static void feed(int fd)
{
    struct peer *peer = peers[fd];
    ssize_t got = recv(fd, peer->buffer + peer->length, BUFFER - 1 - peer->length, 0);
    if (got <= 0) {
        if (got == 0 || (errno != EAGAIN && errno != EINTR))
            drop(fd);
        return;
    }
    peer->length += got;
    while (peer->length && !peer->streaming) {
        peer->buffer[peer->length] = 0;
        char *end = strstr(peer->buffer, "\r\n\r\n");
        if (!end)
            return;
        char *body = end + 4, *stated = strcasestr(peer->buffer, "content-length:");
        size_t wanted = stated && stated < end ? strtoul(stated + 15, NULL, 10) : 0;
        size_t all = (body - peer->buffer) + wanted;
        if (peer->length < all)
            return;
        char kept = peer->buffer[all];
        peer->buffer[all] = 0;
        int failed = answer(fd, peer, peer->buffer, body);
        peer->buffer[all] = kept;
        if (failed) {
            drop(fd);
            return;
        }
        memmove(peer->buffer, peer->buffer + all, peer->length - all);
        peer->length -= all;
    }
}

static int finish(int fd, struct peer *peer)
{
    static const char end[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    peer->streaming = 0;
    return put(fd, last, last_length) || put(fd, usage, usage_length) || put(fd, end, sizeof end - 1);
}

static void tick(void)
{
    uint64_t expirations;
    if (read(timer, &expirations, sizeof expirations) < 0)
        return;
    armed = 0;
    int64_t now = now_us(), soonest = INT64_MAX;
    for (int i = 0; i < stream_count; i++) {
        int fd = streams[i];
        struct peer *peer = peers[fd];
        if (peer->next <= now + 50) {
            if (peer->left-- <= 0) {
                streams[i--] = streams[--stream_count];
                if (finish(fd, peer))
                    drop(fd);
                continue;
            }
            if (put(fd, texts[peer->left % TEXTS], text_length)) {
                drop(fd);
                i--;
                continue;
            }
            peer->next += peer->interval;
        }
        if (peer->next < soonest)
            soonest = peer->next;
    }
    if (stream_count)
        arm(soonest);
}

int main(int count, char **words)
{
    int poll = epoll_create1(0), one = 1, listeners[16], listening = 0;
    struct epoll_event event = {.events = EPOLLIN}, events[256];
    signal(SIGPIPE, SIG_IGN);
    prepare();
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    event.data.fd = timer;
    epoll_ctl(poll, EPOLL_CTL_ADD, timer, &event);
    for (int i = 1; i < count && listening < 16; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(words[i]))};
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 4096)) {
            perror("bind");
            return 1;
        }
        event.data.fd = fd;
        epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
        listeners[listening++] = fd;
    }
    for (;;) {
        int ready = epoll_wait(poll, events, 256, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd, listener = 0;
            for (int k = 0; k < listening; k++)
                listener |= listeners[k] == fd;
            if (fd == timer) {
                tick();
            } else if (listener) {
                int peer;
                while ((peer = accept4(fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (peer >= MAX_FDS || !(peers[peer] = calloc(1, sizeof(struct peer)))) {
                        close(peer);
                        continue;
                    }
                    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    event.data.fd = peer;
                    epoll_ctl(poll, EPOLL_CTL_ADD, peer, &event);
                }
            } else if (peers[fd]) {
                feed(fd);
            }
        }
    }
}
