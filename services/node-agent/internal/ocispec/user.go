package ocispec

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// user decides who the process runs as: the pod's security context first, then the
// image.
func (b *builder) user() error {
	if b.security.GetRunAsGroup() != nil && b.security.GetRunAsUser() == nil && b.security.GetRunAsUsername() == "" {
		return errors.New("runAsGroup is set without runAsUser")
	}
	name, group := b.wantedUser()
	accounts := accounts{root: b.c.RootFS}
	user, err := accounts.user(name)
	if err != nil {
		return err
	}
	if group != "" {
		if user.gid, err = accounts.group(group); err != nil {
			return err
		}
	}
	groups := []uint32{user.gid}
	for _, id := range b.security.GetSupplementalGroups() {
		if id < 0 || id > 1<<32-2 {
			return fmt.Errorf("supplemental group %d is out of range", id)
		}
		groups = append(groups, uint32(id))
	}
	if b.security.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge && user.name != "" {
		members, err := accounts.memberships(user.name)
		if err != nil {
			return err
		}
		groups = append(groups, members...)
	}
	slices.Sort(groups)
	b.spec.Process.User = specs.User{UID: user.uid, GID: user.gid, AdditionalGids: slices.Compact(groups)}
	return nil
}

// wantedUser gives user and group as names or numbers; no group is the user's own.
func (b *builder) wantedUser() (user, group string) {
	if g := b.security.GetRunAsGroup(); g != nil {
		group = strconv.FormatInt(g.GetValue(), 10)
	}
	if u := b.security.GetRunAsUser(); u != nil {
		return strconv.FormatInt(u.GetValue(), 10), group
	}
	if name := b.security.GetRunAsUsername(); name != "" {
		return name, group
	}
	user, imageGroup, _ := strings.Cut(b.c.Image.User, ":")
	if group == "" {
		group = imageGroup
	}
	return user, group
}

// accounts reads /etc/passwd and /etc/group of a root file system.
type accounts struct{ root string }

type account struct {
	name     string
	uid, gid uint32
}

// user looks up a name or number; a number need not be in the file, and none is root.
func (a accounts) user(want string) (account, error) {
	if want == "" {
		want = "0"
	}
	id, idErr := parseID(want)
	found := account{uid: id}
	matched := false
	err := a.scan("/etc/passwd", func(fields []string) error {
		if len(fields) < 4 || matched {
			return nil
		}
		uid, err := parseID(fields[2])
		if err != nil || (fields[0] != want && (idErr != nil || uid != id)) {
			return nil
		}
		gid, err := parseID(fields[3])
		if err != nil {
			return fmt.Errorf("user %s of the image: %w", fields[0], err)
		}
		found, matched = account{name: fields[0], uid: uid, gid: gid}, true
		return nil
	})
	if err != nil {
		return account{}, err
	}
	if !matched && idErr != nil {
		return account{}, fmt.Errorf("user %q is not in the image's /etc/passwd", want)
	}
	return found, nil
}

func (a accounts) group(want string) (uint32, error) {
	if id, err := parseID(want); err == nil {
		return id, nil
	}
	var gid uint32
	matched := false
	err := a.scan("/etc/group", func(fields []string) error {
		if len(fields) >= 3 && fields[0] == want {
			id, err := parseID(fields[2])
			gid, matched = id, err == nil
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if !matched {
		return 0, fmt.Errorf("group %q is not in the image's /etc/group", want)
	}
	return gid, nil
}

func (a accounts) memberships(user string) ([]uint32, error) {
	var gids []uint32
	err := a.scan("/etc/group", func(fields []string) error {
		if len(fields) < 4 || !slices.Contains(strings.Split(fields[3], ","), user) {
			return nil
		}
		if id, err := parseID(fields[2]); err == nil {
			gids = append(gids, id)
		}
		return nil
	})
	return gids, err
}

func (a accounts) scan(name string, line func(fields []string) error) error {
	file, err := openInRoot(a.root, name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the image's %s: %w", name, err)
	}
	defer file.Close()
	const largest = 10 << 20 // a file of accounts, not a way to fill the agent's memory
	scanner := bufio.NewScanner(io.LimitReader(file, largest))
	for scanner.Scan() {
		text := strings.TrimSpace(scanner.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		if err := line(strings.Split(text, ":")); err != nil {
			return err
		}
	}
	return scanner.Err()
}

// openInRoot opens a regular file as a process would whose root directory it is.
// Devices and pipes are refused: opening one can block or act.
func openInRoot(root, name string) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func parseID(s string) (uint32, error) {
	id, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, err
	}
	return uint32(id), nil
}
