package crenel;

import java.util.Collection;
import org.apache.flink.contrib.streaming.state.RocksDBOptionsFactory;
import org.rocksdb.ColumnFamilyOptions;
import org.rocksdb.DBOptions;

/**
 * Lets RocksDB begin its manifest anew every 32 kB. By default it does so every gigabyte, and until then each checkpoint
 * adds to it, and uploads the whole. Flink has no setting for it.
 */
public final class ShortManifest implements RocksDBOptionsFactory {
  private static final long MOST = 32 << 10;

  @Override
  public DBOptions createDBOptions(DBOptions current, Collection<AutoCloseable> handles) {
    return current.setMaxManifestFileSize(MOST);
  }

  @Override
  public ColumnFamilyOptions createColumnOptions(ColumnFamilyOptions current, Collection<AutoCloseable> handles) {
    return current;
  }
}
