package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const mebi = 1 << 20

// fill writes that many mebibytes, or what fits, and goes on.
func fill(path, mebibytes string) {
	n, err := strconv.Atoi(mebibytes)
	check(err)
	file, err := os.Create(path)
	check(err)
	block := make([]byte, mebi)
	for i := range block {
		block[i] = byte(i * 7)
	}
	for range n {
		if _, err := file.Write(block); err != nil {
			break
		}
	}
	_ = file.Sync()
	fmt.Println("filled")
	forever()
}

// files makes that many files, or what can be made, and goes on.
func files(dir, count string) {
	n, err := strconv.Atoi(count)
	check(err)
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o644); err != nil {
			break
		}
	}
	fmt.Println("made")
	forever()
}

// chatter prints that many mebibytes and goes on.
func chatter(mebibytes string) {
	n, err := strconv.Atoi(mebibytes)
	check(err)
	line := strings.Repeat("x", 1023)
	for range n * (mebi >> 10) {
		fmt.Println(line)
	}
	forever()
}

// hold takes that many mebibytes of memory and goes on.
func hold(mebibytes string) {
	n, err := strconv.Atoi(mebibytes)
	check(err)
	held := make([]byte, n*mebi)
	for i := range held {
		held[i] = 1
	}
	fmt.Println("holding", len(held))
	forever()
	fmt.Println(held[0])
}
