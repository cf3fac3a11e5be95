import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** The server and client sides of the Java runtime: HTTP, blocking streams, selectors, transferTo. */
public class Exchange {
    static final InetAddress HOST = InetAddress.getLoopbackAddress();

    public static void main(String[] args) throws Exception {
        byte[] body = new byte[3_000_000];
        new Random(1).nextBytes(body);
        http(body);
        selectors(body);
        blocking(body);
        transfer(body);
        asynchronous(body);
        timeout();
        System.exit(0);
    }

    static void say(String what, Object fact) {
        System.out.println(what + ": " + fact);
    }

    static String hash(byte[] bytes) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("MD5").digest(bytes));
    }

    static void http(byte[] body) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(HOST, 0), 0);
        ExecutorService pool = Executors.newFixedThreadPool(4);
        server.setExecutor(pool);
        server.createContext("/echo", exchange -> {
            byte[] got = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, got.length == 0 ? -1 : got.length);
            try (OutputStream out = exchange.getResponseBody()) {
                out.write(got);
            }
        });
        server.start();
        URI uri = URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/echo");
        HttpClient client = HttpClient.newHttpClient();
        List<CompletableFuture<HttpResponse<byte[]>>> answers = new ArrayList<>();
        for (int n = 0; n < 60; n++) {
            byte[] part = java.util.Arrays.copyOf(body, n * 1000);
            HttpRequest request = HttpRequest.newBuilder(uri).POST(HttpRequest.BodyPublishers.ofByteArray(part)).build();
            answers.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()));
        }
        int right = 0;
        for (int n = 0; n < 60; n++) {
            byte[] got = answers.get(n).get().body();
            right += hash(got).equals(hash(java.util.Arrays.copyOf(body, n * 1000))) ? 1 : 0;
        }
        say("http, right answers", right);
        HttpRequest request = HttpRequest.newBuilder(uri).POST(HttpRequest.BodyPublishers.ofByteArray(body)).build();
        say("http, large", hash(client.send(request, HttpResponse.BodyHandlers.ofByteArray()).body()));
        server.stop(0);
        pool.shutdownNow();
    }

    /** One selector serves and connects. */
    static void selectors(byte[] body) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress(HOST, 0));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        int left = 20;
        List<ByteBuffer> results = new ArrayList<>();
        for (int n = 0; n < left; n++) {
            SocketChannel channel = SocketChannel.open();
            channel.configureBlocking(false);
            channel.connect(listener.getLocalAddress());
            ByteBuffer[] state = {ByteBuffer.wrap(body, 0, 50_000 + n), ByteBuffer.allocate(50_000 + n)};
            results.add(state[1]);
            channel.register(selector, SelectionKey.OP_CONNECT, state);
        }
        while (left > 0) {
            selector.select();
            var keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    for (SocketChannel got; (got = listener.accept()) != null;) {
                        got.configureBlocking(false);
                        got.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(8192));
                    }
                } else if (key.attachment() instanceof ByteBuffer buffer) {
                    left -= echo(key, buffer);
                } else {
                    client(key, (ByteBuffer[]) key.attachment());
                }
            }
        }
        int right = 0;
        for (ByteBuffer got : results) {
            right += ByteBuffer.wrap(body, 0, got.capacity()).equals(got.flip()) ? 1 : 0;
        }
        say("selectors, right echoes", right);
        listener.close();
        selector.close();
    }

    static int echo(SelectionKey key, ByteBuffer buffer) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        int got = buffer.hasRemaining() ? channel.read(buffer) : 0;
        buffer.flip();
        channel.write(buffer);
        buffer.compact();
        if (got < 0 && buffer.position() == 0) {
            channel.close();
            return 1;
        }
        key.interestOps(buffer.position() > 0 ? SelectionKey.OP_READ | SelectionKey.OP_WRITE : SelectionKey.OP_READ);
        return 0;
    }

    static void client(SelectionKey key, ByteBuffer[] state) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        if (key.isConnectable()) {
            channel.finishConnect();
            key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
        }
        if (key.isValid() && key.isWritable()) {
            channel.write(state[0]);
            if (!state[0].hasRemaining()) {
                channel.shutdownOutput();
                key.interestOps(SelectionKey.OP_READ);
            }
        }
        if (key.isReadable() && channel.read(state[1]) < 0) {
            channel.close();
        }
    }

    static void blocking(byte[] body) throws Exception {
        try (ServerSocket listener = new ServerSocket(0, 50, HOST)) {
            Thread server = new Thread(() -> {
                try (Socket socket = listener.accept()) {
                    socket.getInputStream().transferTo(socket.getOutputStream());
                } catch (IOException e) {
                    say("server", e);
                }
            });
            server.start();
            try (Socket socket = new Socket(HOST, listener.getLocalPort())) {
                Thread writer = new Thread(() -> {
                    try {
                        socket.getOutputStream().write(body);
                        socket.shutdownOutput();
                    } catch (IOException e) {
                        say("writer", e);
                    }
                });
                writer.start();
                say("blocking", hash(socket.getInputStream().readAllBytes()));
                writer.join();
            }
            server.join();
        }
    }

    /** A file goes into a socket and out of it again: sendfile, and what stands in for it. */
    static void transfer(byte[] body) throws Exception {
        Path file = Files.createTempFile(Path.of("."), "transfer", ".bin");
        Path copy = Files.createTempFile(Path.of("."), "transfer", ".copy");
        Files.write(file, body);
        try (ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress(HOST, 0))) {
            Thread server = new Thread(() -> {
                try (SocketChannel channel = listener.accept(); FileChannel from = FileChannel.open(file)) {
                    for (long at = 0; at < from.size();) {
                        at += from.transferTo(at, from.size() - at, channel);
                    }
                } catch (IOException e) {
                    say("server", e);
                }
            });
            server.start();
            try (SocketChannel channel = SocketChannel.open(listener.getLocalAddress());
                    FileChannel to = FileChannel.open(copy, StandardOpenOption.WRITE)) {
                long at = 0;
                for (long n; (n = to.transferFrom(channel, at, body.length)) > 0;) {
                    at += n;
                }
            }
            server.join();
        }
        say("transfer", hash(Files.readAllBytes(copy)));
    }

    static void asynchronous(byte[] body) throws Exception {
        try (var listener = java.nio.channels.AsynchronousServerSocketChannel.open().bind(new InetSocketAddress(HOST, 0))) {
            var accepted = listener.accept();
            var client = java.nio.channels.AsynchronousSocketChannel.open();
            client.connect(listener.getLocalAddress()).get();
            var server = accepted.get();
            ByteBuffer from = ByteBuffer.wrap(body, 0, 1_000_000);
            ByteBuffer to = ByteBuffer.allocate(1_000_000);
            var first = server.read(to);
            while (from.hasRemaining()) {
                client.write(from).get();
                first.get();
                if (to.hasRemaining()) {
                    first = server.read(to);
                }
            }
            while (to.hasRemaining()) {
                first.get();
                if (to.hasRemaining()) {
                    first = server.read(to);
                }
            }
            say("asynchronous", ByteBuffer.wrap(body, 0, 1_000_000).equals(to.flip()));
            client.close();
            say("asynchronous, end", server.read(ByteBuffer.allocate(1)).get());
            server.close();
        }
    }

    static void timeout() throws Exception {
        try (ServerSocket listener = new ServerSocket(0, 50, HOST);
                Socket client = new Socket(HOST, listener.getLocalPort());
                Socket server = listener.accept()) {
            server.setSoTimeout(50);
            try {
                say("timeout", server.getInputStream().read());
            } catch (IOException e) {
                say("timeout", e);
            }
            client.getOutputStream().write(7);
            say("after the timeout", server.getInputStream().read());
            // Closed by another thread while this one reads.
            server.setSoTimeout(0);
            Thread closer = new Thread(() -> {
                try {
                    Thread.sleep(100);
                    server.close();
                } catch (Exception e) {
                    say("closer", e);
                }
            });
            closer.start();
            try {
                say("closed", server.getInputStream().read());
            } catch (IOException e) {
                say("closed", e);
            }
        }
    }
}
