import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Iterator;

/** Answers each request with its number and one: Server threads|nio ADDRESS PORT BYTES */
public class Server {
    static final int BACKLOG = 1024;

    public static void main(String[] args) throws IOException {
        InetAddress address = InetAddress.getByName(args[1]);
        int port = Integer.parseInt(args[2]);
        int size = Integer.parseInt(args[3]);
        if (args[0].equals("threads")) {
            threads(new ServerSocket(port, BACKLOG, address), size);
        } else {
            nio(new InetSocketAddress(address, port), size);
        }
    }

    static void threads(ServerSocket listener, int size) throws IOException {
        while (true) {
            Socket socket = listener.accept();
            Thread thread = new Thread(() -> serve(socket, size));
            thread.setDaemon(true);
            thread.start();
        }
    }

    static void serve(Socket socket, int size) {
        byte[] message = new byte[size];
        try (socket) {
            socket.setTcpNoDelay(true);
            DataInputStream in = new DataInputStream(socket.getInputStream());
            OutputStream out = socket.getOutputStream();
            while (true) {
                in.readFully(message);
                answer(ByteBuffer.wrap(message));
                out.write(message);
            }
        } catch (EOFException e) {
            // The client has gone.
        } catch (IOException e) {
            System.err.println(e);
        }
    }

    static void answer(ByteBuffer message) {
        message.putLong(0, message.getLong(0) + 1);
        for (int i = Long.BYTES; i < message.capacity(); i++) {
            message.put(i, (byte) 'y');
        }
    }

    static void nio(InetSocketAddress at, int size) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(at, BACKLOG);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            Iterator<SelectionKey> keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel channel;
                    while ((channel = listener.accept()) != null) {
                        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                        channel.configureBlocking(false);
                        channel.register(
                                selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(size));
                    }
                } else if (!step(key)) {
                    key.channel().close();
                }
            }
        }
    }

    /** Goes on with a request or its answer; false at the end. */
    static boolean step(SelectionKey key) {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer message = (ByteBuffer) key.attachment();
        try {
            if (key.isReadable()) {
                if (channel.read(message) < 0) {
                    return false;
                }
                if (message.hasRemaining()) {
                    return true;
                }
                message.flip();
                answer(message);
            }
            channel.write(message);
            if (message.hasRemaining()) {
                key.interestOps(SelectionKey.OP_WRITE);
            } else {
                message.clear();
                if (key.interestOps() != SelectionKey.OP_READ) {
                    key.interestOps(SelectionKey.OP_READ);
                }
            }
            return true;
        } catch (IOException e) {
            return false;
        }
    }
}
