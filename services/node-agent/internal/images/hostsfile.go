package images

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/BurntSushi/toml"
)

const hostsFileName = "hosts.toml"

// hostsFile is a registry's configuration in containerd's form, as documented in its
// docs/hosts.md.
type hostsFile struct {
	dir    string
	server hostConfig
	hosts  []hostConfig // in the order of the file
}

func (f hostsFile) file() string { return filepath.Join(f.dir, hostsFileName) }

type hostConfig struct {
	url          string
	capabilities []string
	ca           []string
	client       [][2]string // certificate and key
	skipVerify   bool
	overridePath bool // the URL's path is where the API is, without /v2
	dialTimeout  time.Duration
	header       http.Header
}

type hostTable struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   bool           `toml:"skip_verify"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
	Header       map[string]any `toml:"header"`
}

func parseHosts(text string) (*hostsFile, error) {
	var file struct {
		hostTable
		Server string               `toml:"server"`
		Host   map[string]hostTable `toml:"host"`
	}
	meta, err := toml.Decode(text, &file)
	if err != nil {
		return nil, err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("setting %q is not supported", unknown[0])
	}
	out := &hostsFile{}
	if file.Server != "" {
		if out.server, err = file.hostTable.config(file.Server); err != nil {
			return nil, err
		}
	}
	var seen []string
	for _, key := range meta.Keys() {
		if len(key) != 2 || key[0] != "host" || slices.Contains(seen, key[1]) {
			continue
		}
		seen = append(seen, key[1])
		host, err := file.Host[key[1]].config(key[1])
		if err != nil {
			return nil, fmt.Errorf("host %q: %w", key[1], err)
		}
		out.hosts = append(out.hosts, host)
	}
	return out, nil
}

func (t hostTable) config(url string) (hostConfig, error) {
	config := hostConfig{url: url, capabilities: t.Capabilities, skipVerify: t.SkipVerify, overridePath: t.OverridePath}
	var err error
	if t.DialTimeout != "" {
		if config.dialTimeout, err = time.ParseDuration(t.DialTimeout); err != nil {
			return config, fmt.Errorf("dial_timeout: %w", err)
		}
	}
	if config.ca, err = stringList(t.CA); err != nil {
		return config, fmt.Errorf("ca: %w", err)
	}
	if config.client, err = clientPairs(t.Client); err != nil {
		return config, fmt.Errorf("client: %w", err)
	}
	for key, value := range t.Header {
		values, err := stringList(value)
		if err != nil {
			return config, fmt.Errorf("header %q: %w", key, err)
		}
		if config.header == nil {
			config.header = http.Header{}
		}
		config.header[http.CanonicalHeaderKey(key)] = values
	}
	return config, nil
}

// stringList takes a string or a list of them.
func stringList(value any) ([]string, error) {
	switch v := value.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []any:
		var list []string
		for _, item := range v {
			s, ok := item.(string)
			if !ok {
				return nil, errors.New("neither a string nor a list of strings")
			}
			list = append(list, s)
		}
		return list, nil
	}
	return nil, errors.New("neither a string nor a list of strings")
}

// clientPairs takes a file that holds certificate and key, or a list of files or of
// pairs of files.
func clientPairs(value any) ([][2]string, error) {
	items, ok := value.([]any)
	if !ok {
		single, err := stringList(value)
		if err != nil || len(single) == 0 {
			return nil, err
		}
		return [][2]string{{single[0], single[0]}}, nil
	}
	var pairs [][2]string
	for _, item := range items {
		files, err := stringList(item)
		if err != nil {
			return nil, err
		}
		switch len(files) {
		case 1:
			pairs = append(pairs, [2]string{files[0], files[0]})
		case 2:
			pairs = append(pairs, [2]string{files[0], files[1]})
		default:
			return nil, errors.New("a pair is a certificate and a key")
		}
	}
	return pairs, nil
}
