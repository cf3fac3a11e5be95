//! Very many client processes of one server, most of which say something now and then.

use std::time::Duration;

use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox};

/// A thread answers whatever comes, by one epoll instance, and counts the ends.
const SERVER: &str = r#"
import select, socket
listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
epoll, conns = select.epoll(), {}
epoll.register(listener, select.EPOLLIN)
print("port", listener.getsockname()[1], flush=True)
while True:
    for fd, _ in epoll.poll():
        if fd == listener.fileno():
            conn = listener.accept()[0]
            conns[conn.fileno()] = conn
            epoll.register(conn, select.EPOLLIN)
            continue
        got = conns[fd].recv(4096)
        if got:
            conns[fd].sendall(got)
        else:
            epoll.unregister(fd)
            conns.pop(fd).close()
            print("end", flush=True)
"#;

/// Starts a process for each connection, and says which of them asks. An answer that does not come keeps it from ending.
const CLIENTS: &str = r#"
import os, random, signal, socket, sys
random.seed(int(sys.argv[2]))
COUNT = int(sys.argv[3])
def child(orders, done):
    conn = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    os.write(done, b"c")
    while True:
        order = os.read(orders, 1)
        if not order:
            return
        for _ in range(300 if order == b"m" else 1):
            ask = random.randbytes(random.randrange(1, 3000))
            conn.sendall(ask)
            got = b""
            while len(got) < len(ask):
                more = conn.recv(4096)
                assert more
                got += more
            assert got == ask
        os.write(done, b"d")

class Client:
    def __init__(self, others):
        orders, self.orders = os.pipe()
        self.done, done = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for other in others: os.close(other.orders)
            os.close(self.orders)
            try: child(orders, done)
            finally: os._exit(1 if sys.exc_info()[0] else 0)
        os.close(orders), os.close(done)
        self.wait()
    def tell(self, order): os.write(self.orders, order)
    def wait(self): assert os.read(self.done, 1)
    def do(self, order): self.tell(order), self.wait()

clients = []
for _ in range(COUNT): clients.append(Client(clients))
for _ in range(3):
    for client in clients: client.do(b"o")
clients[7].do(b"m")
for client in random.choices(clients, k=10 * COUNT): client.do(b"m" if random.random() < 0.01 else b"o")
for _ in range(5):
    for client in clients: client.tell(b"o")
    for client in clients: client.wait()
for client in clients: client.tell(b"m")
for client in clients: client.wait()
for client in clients: client.do(b"o")
print("done", flush=True)
for at, client in enumerate(clients):
    if at % 2: os.kill(client.pid, signal.SIGKILL)
    else: os.close(client.orders)
    os.waitpid(client.pid, 0)
"#;

/// Client processes.
const COUNT: usize = 150;

#[test]
fn most_of_the_client_processes_are_idle() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        sandbox.start_agent();
        let mut server = sandbox.python(&[SERVER]);
        let port = server.wait_for_line(|line| line.strip_prefix("port ").map(str::to_owned));
        let count = COUNT.to_string();
        let ends = 2 * u64::try_from(COUNT).unwrap();
        sandbox.expect(Expect::All(ends), || {
            let clients = sandbox.python(&[CLIENTS, &port, "1", &count]);
            let _ = clients.wait_at_most(Duration::from_secs(300)).success();
        });
        let all_ended = |text: &str| (text.matches("end").count() == COUNT).then_some(());
        server.wait_for_text(all_ended);
        server.kill();
    }
}
