package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/sampan-io/sampan/services/internal/pki"
)

// Config is what the operator chose; it is kept so that a later command knows
// the cluster without being told again.
type Config struct {
	Nodes int `json:"nodes"`
}

// Validate refuses what cannot be built.
func (c Config) Validate() error {
	if c.Nodes < 1 || c.Nodes > MaxNodes {
		return fmt.Errorf("--nodes: %d is not between 1 and %d", c.Nodes, MaxNodes)
	}
	return nil
}

// Load reads the cluster's configuration; found is false when there is none.
func (l Layout) Load() (config Config, found bool, err error) {
	data, err := os.ReadFile(l.ConfigFile())
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, false, nil
	}
	if err != nil {
		return Config{}, false, fmt.Errorf("reading cluster configuration: %w", err)
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return Config{}, false, fmt.Errorf("reading cluster configuration %s: %w", l.ConfigFile(), err)
	}
	return config, true, nil
}

// Store writes the cluster's configuration.
func (l Layout) Store(config Config) error {
	data, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encoding cluster configuration: %w", err)
	}
	return pki.WriteFile(l.ConfigFile(), append(data, '\n'), 0o644)
}
