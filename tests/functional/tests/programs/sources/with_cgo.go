package main

// #include <unistd.h>
import "C"

func parent() int { return int(C.getppid()) }
