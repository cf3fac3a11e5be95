// A server and clients of Go's net in one program, and a client that is another one.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os/exec"
	"sync"
)

var body = bytes.Repeat([]byte("shunt over and over, "), 100000)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go serve(listener)
	var group sync.WaitGroup
	right := make([]bool, 20)
	for n := range right {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			right[n] = client(listener.Addr().String(), body[:n*50000])
		}(n)
	}
	group.Wait()
	fmt.Println("echoes", right)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	check(err)
	ncat := exec.Command("ncat", "127.0.0.1", port)
	ncat.Stdin = bytes.NewReader(body)
	out, err := ncat.Output()
	fmt.Println("ncat", bytes.Equal(out, body), err, parent() > 0)
}

func serve(listener net.Listener) {
	for {
		socket, err := listener.Accept()
		check(err)
		go func() {
			_, err := io.Copy(socket, socket)
			check(err)
			socket.Close()
		}()
	}
}

func client(address string, part []byte) bool {
	socket, err := net.Dial("tcp", address)
	check(err)
	go func() {
		_, err := socket.Write(part)
		check(err)
		check(socket.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(socket)
	check(err)
	return bytes.Equal(got, part)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
